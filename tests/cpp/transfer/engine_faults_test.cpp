// Failures, close and fork: nobody reuses memory under a running copy. Runs under ASan/UBSan and TSan.
#include <sys/wait.h>
#include <unistd.h>

#include "transfer/engine_fixture.h"

namespace kvo {
namespace {

// A stream whose nth record fails, as on a device that has gone wrong.
class FlakyStream : public Stream {
 public:
  explicit FlakyStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}
  Status wait(const Event& event) override { return inner_->wait(event); }
  Status record(Event& event) override {
    return fault::fires("record") ? Status(Code::device, "recording failed (injected)") : inner_->record(event);
  }
  Status copy(std::span<const CopySpan> spans, Direction direction) override { return inner_->copy(spans, direction); }
  Status copy_pages(const PageCopy& copy) override { return inner_->copy_pages(copy); }

 private:
  std::unique_ptr<Stream> inner_;
};

class FlakyDevice : public Device {
 public:
  std::string name() const override { return inner_->name(); }
  bool is_cuda() const override { return false; }
  int numa_node() const override { return -1; }
  Result<std::unique_ptr<Event>> make_event(bool timed) override { return inner_->make_event(timed); }
  std::string identity() const override { return inner_->identity(); }
  double link_gb_per_s() const override { return 0; }
  Result<std::unique_ptr<DeviceMemory>> allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  std::int64_t free_bytes() override { return inner_->free_bytes(); }
  Result<std::unique_ptr<Stream>> make_stream(Urgency urgency) override {
    return std::unique_ptr<Stream>(std::make_unique<FlakyStream>(std::move(*inner_->make_stream(urgency))));
  }
  Status record(Event& event, StreamHandle caller) override { return inner_->record(event, caller); }
  Status wait(StreamHandle caller, const Event& event, Deadline deadline) override {
    return inner_->wait(caller, event, deadline);
  }
  EventState query(const Event& event) override { return inner_->query(event); }
  double seconds_between(const Event& start, const Event& end) override { return inner_->seconds_between(start, end); }
  Status pin(std::byte*, std::int64_t) override { return {}; }
  Status unpin(std::byte*) override { return {}; }
  Status enter_thread() override { return {}; }

 private:
  std::shared_ptr<Device> inner_ = make_host_device();
};

TEST_F(EngineTest, FailureOfTheNthCopyFailsThatTransferAlone) {
  fault::arm("copy", 1, 1);
  auto bad = submit(Direction::store, {0, 2}, {0}, 0, 1);
  ASSERT_TRUE(bad.ok());
  const TransferResult result = finish(*bad);
  EXPECT_FALSE(result.ok);
  EXPECT_NE(result.status.message().find("copy 1 of 2"), std::string::npos) << result.status.message();
  EXPECT_FALSE(bad->lane->before(*bad->transfer, 0, in(1s)).ok());
  auto good = submit(Direction::store, {0, 2}, {0}, 0, 2);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(finish(*good).ok);
  auto finished = engine_->poll();
  ASSERT_TRUE(finished.ok());
  ASSERT_EQ(finished->size(), 2u);
  EXPECT_EQ((*finished)[1]->job, 2);
  EXPECT_TRUE(engine_->poll()->empty()) << "each result is handed out once";
}

TEST_F(EngineTest, BeforeGivesTheEdgeAlsoWhenTheTransferFailed) {
  std::memset(*engine_->slot_address(0, 0), 7, 2 * kBlockBytes);
  HostStream slow;
  slow.delay(0.05);
  fault::arm("copy", 1, 1);  // the first page is on its way
  auto loaded = submit(Direction::load, {0, 2}, {0}, slow.handle());
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->lane->before(*loaded->transfer, 0, in(10s)).code(), Code::device);
  fill_block(0, 9);  // computed again
  EXPECT_FALSE(finish(*loaded).ok);
  EXPECT_TRUE(block_is(0, 9)) << "a late copy of the failed load overwrote it";
}

TEST_F(EngineTest, ATransferWhoseEndIsUnknownIsNeverTakenForFinished) {
  open(8, std::make_shared<FlakyDevice>());
  fault::arm("record", 1, 1);  // its start is recorded, its end is not
  auto lost = submit(Direction::store, {0, 1}, {0});
  ASSERT_TRUE(lost.ok());
  EXPECT_EQ(lost->lane->before(*lost->transfer, 0, in(10s)).code(), Code::device);
  EXPECT_FALSE(lost->lane->done(*lost->transfer));
  EXPECT_EQ(submit(Direction::store, {2, 3}, {1}).status().code(), Code::device) << "nothing more goes that way";
  EXPECT_EQ(engine_->close(in(20ms)).code(), Code::timeout) << "its memory is left to the copies";
  static auto& kept = *new std::vector<std::byte>;
  kept = std::move(tensor_);
}

TEST_F(EngineTest, AfterACloseThatTimedOutNoNewCopiesAreMade) {
  const std::int64_t pages = 400, page_bytes = 4;
  open_many_pages(pages, page_bytes);
  HostStream slow;
  slow.delay(0.3);
  Ids all(kBlocks);
  std::iota(all.begin(), all.end(), 0);
  auto loaded = submit(Direction::load, all, all, slow.handle());
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(engine_->close(in(20ms)).code(), Code::timeout);
  EXPECT_TRUE(slow.synchronize().ok());
  EXPECT_FALSE(finish(*loaded).ok);
  EXPECT_NE(tensor_[(kBlocks - 1) * kStride], std::byte{0}) << "the last block was not reached before close()";
}

TEST_F(EngineTest, FailedEventFailsTheTransferOrTheSubmit) {
  fault::arm("event", 0, 1);
  EXPECT_EQ(submit(Direction::store, {0, 1}, {0}).status().code(), Code::device);
  fault::arm("event", 1, 1);
  auto handle = submit(Direction::store, {0, 1}, {0});
  ASSERT_TRUE(handle.ok());
  EXPECT_FALSE(finish(*handle).ok);
}

TEST_F(EngineTest, CloseLetsTransfersFinishAndRefusesLaterUse) {
  HostStream slow;
  slow.delay(0.05);
  auto handle = submit(Direction::store, {0, 1}, {0}, slow.handle());
  ASSERT_TRUE(handle.ok());
  EXPECT_TRUE(engine_->close(in(10s)).ok());
  EXPECT_TRUE(handle->transfer->result.ok);
  EXPECT_TRUE(engine_->close(in(10s)).ok());
  EXPECT_EQ(submit(Direction::store, {0, 1}, {0}).status().code(), Code::closed);
}

TEST_F(EngineTest, ClosePastItsDeadlineCancelsWhatDidNotStart) {
  HostStream slow;
  slow.delay(0.3);
  auto running = submit(Direction::store, {0, 1}, {0}, slow.handle());
  ASSERT_TRUE(running.ok());
  EXPECT_EQ(engine_->close(in(20ms)).code(), Code::timeout);
  EXPECT_EQ(engine_->slot_address(0, 0).status().code(), Code::closed) << "the engine has let go of the leaked memory";
  EXPECT_TRUE(finish(*running).ok) << "its memory is still there";
}

TEST_F(EngineTest, AForkedChildMayNotUseItAndExitsCleanly) {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = submit(Direction::store, {0, 1}, {0}).status().code() == Code::forked;
    engine_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(submit(Direction::store, {0, 1}, {0}).ok());
}

}  // namespace
}  // namespace kvo
