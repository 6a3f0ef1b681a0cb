#include "storage/disk_tier.h"

#include <thread>

#include "storage/disk_tier_fixture.h"

namespace kvo {
namespace {

struct Way {
  const char* io;
  int threads, directories, depth;
  std::int64_t request_bytes;
};

struct DiskTierWays : DiskTierTest, testing::WithParamInterface<Way> {
  void SetUp() override {
    if (const std::string why = why_not(GetParam().io); !why.empty()) GTEST_SKIP() << why;
  }
  DiskTierWays() {
    const Way& way = GetParam();
    for (int i = 1; i < way.directories; ++i) options.slab.directories.push_back(dir.make(std::to_string(i)));
    options.slab.plan.directories = way.directories;
    options.io = way.io, options.threads = way.threads;
    options.depth = way.depth, options.request_bytes = way.request_bytes;
  }
};

TEST_P(DiskTierWays, WhatWasDemotedIsPromoted) {
  open();
  EXPECT_EQ(tier->report().io, GetParam().io);
  const DiskJobResult written = demote(range(0, kSlots));
  EXPECT_EQ(written.failed, Slots());
  EXPECT_EQ(written.bytes, kSlots * kSlot);
  memory.clear();
  open();  // as after a restart
  const DiskJobResult read = promote(range(0, kSlots));
  EXPECT_EQ(read.failed, Slots());
  EXPECT_EQ(read.bytes, kSlots * kSlot);
  for (std::int64_t slot = 0; slot < kSlots; ++slot) expect_payload(slot);
  EXPECT_EQ(tier->stats().promoted, kSlots);
  EXPECT_EQ(tier->stats().strays, 0);
  EXPECT_TRUE(tier->sync().ok());
  EXPECT_TRUE(tier->close(soon()).ok());
}

TEST_P(DiskTierWays, JobsOfManyThreadsAllEndAndNeverBringWrongBytes) {
  open();
  demote(range(0, kSlots));
  for (int round = 0; round < 8; ++round) {
    if (round % 2 == 0) memory.clear();
    std::vector<std::thread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&, i] {
        const auto kind = round % 2 == 0 ? DiskJobKind::promote : DiskJobKind::demote;
        for (std::int64_t slot = i * 4; slot < i * 4 + 4; ++slot) {
          EXPECT_EQ(tier->submit(job(kind, slot, {slot})).message(), "");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto ended = results();
    ASSERT_EQ(static_cast<std::int64_t>(ended.size()), kSlots);
    for (const auto& [slot, result] : ended) {
      EXPECT_EQ(result.failed, Slots());
      expect_payload(slot);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DiskTierWays,
                         testing::Values(Way{"io_uring", 1, 1, 8, 4 * MiB}, Way{"threads", 1, 1, 8, 4 * MiB},
                                         Way{"io_uring", 3, 3, 4, 8192}, Way{"threads", 3, 3, 4, 8192},
                                         Way{"io_uring", 1, 1, 1, 4096}, Way{"threads", 16, 2, 2, 12 * KiB}),
                         [](const auto& info) {
                           return info.param.io + std::to_string(info.param.threads) + "_" +
                                  std::to_string(info.param.directories) + "_" + std::to_string(info.param.depth);
                         });

TEST_F(DiskTierTest, PromotionsGoFirst) {
  DiskJobs jobs(100, DiskHealth(8, 10));
  ASSERT_TRUE(jobs.submit(job(DiskJobKind::demote, 1, {0, 1})).ok());
  ASSERT_TRUE(jobs.submit(job(DiskJobKind::promote, 2, {2, 3})).ok());
  std::vector<std::int64_t> order;
  for (DiskJobs::Taken taken; jobs.take(true, taken);) {
    order.push_back(taken.job().id);
    if (order.size() == 1) {
      ASSERT_TRUE(jobs.submit(job(DiskJobKind::promote, 3, {4})).ok());
    }
  }
  EXPECT_EQ(order, (std::vector<std::int64_t>{2, 2, 3, 1, 1}));
  ASSERT_TRUE(jobs.submit(job(DiskJobKind::demote, 4, {0})).ok());
  DiskJobs::Taken taken;
  EXPECT_FALSE(jobs.take(false, taken));  // while enough demotions are under way
}

TEST_F(DiskTierTest, AFullQueueAndABadJobAreRefused) {
  options.most_waiting = 8, options.depth = 1;
  open();
  EXPECT_EQ(tier->submit(job(DiskJobKind::demote, 1, range(0, 9))).code(), Code::queue_full);
  EXPECT_EQ(tier->stats().dropped, 9);
  EXPECT_TRUE(tier->submit(job(DiskJobKind::demote, 1, range(0, 8))).ok());
  EXPECT_EQ(results().at(1).failed, Slots());
  EXPECT_TRUE(tier->submit(job(DiskJobKind::demote, 2, {})).ok());
  EXPECT_EQ(results().count(2), 1u);

  const auto refused = [&](auto change) {
    DiskJob bad = job(DiskJobKind::demote, 3, {0});
    change(bad);
    return tier->submit(std::move(bad)).code();
  };
  EXPECT_EQ(refused([](DiskJob& bad) { bad.records[0].disk_offset = kSlots * kSlot; }), Code::invalid);
  EXPECT_EQ(refused([](DiskJob& bad) { bad.records[0].disk_offset = -kSlot; }), Code::invalid);
  EXPECT_EQ(refused([](DiskJob& bad) { bad.records[0].disk_offset = 4096; }), Code::invalid);
  EXPECT_EQ(refused([](DiskJob& bad) { bad.records[0].memory += 8; }), Code::invalid);
  EXPECT_EQ(refused([](DiskJob& bad) { bad.payload_bytes = kSlot - 511; }), Code::invalid);
  EXPECT_EQ(refused([](DiskJob& bad) { bad.slot_bytes = 5000; }), Code::invalid);
  EXPECT_EQ(refused([](DiskJob& bad) { bad.slot_bytes = 0; }), Code::invalid);
}

TEST_F(DiskTierTest, AKeyThatIsTooLongIsAMissAndTheOthersAreNot) {
  open();
  DiskJob mixed = job(DiskJobKind::demote, 1, {0, 1, 2});
  mixed.records[1].key = std::string(257, 'k');
  EXPECT_EQ(run(std::move(mixed)).failed, Slots({1}));
  EXPECT_EQ(promote({0, 2}).failed, Slots());
  options.slab.fingerprint = std::string(129, 'f');
  EXPECT_EQ(DiskTier::open(options).status().code(), Code::invalid);
}

TEST_F(DiskTierTest, WhatComesTooLateIsAMiss) {
  open();
  demote({0});
  DiskJob late = job(DiskJobKind::promote, 1, {0});
  late.deadline = std::chrono::steady_clock::now();
  EXPECT_EQ(run(std::move(late)).failed, Slots{0});
  EXPECT_EQ(tier->stats().promotions[static_cast<std::size_t>(DiskOutcome::deadline)], 1);
}

TEST_F(DiskTierTest, ADiskThatFailsIsOffAndTriedAgain) {
  options.most_failures = 3, options.retry_seconds = 0.05, options.depth = 1;
  open();
  demote(range(0, 8));
  fault::arm("io_eio", 0, 1000);
  EXPECT_EQ(promote(range(0, 8)).failed.size(), 8u);
  const std::int64_t tried = tier->stats().promotions[static_cast<std::size_t>(DiskOutcome::io_error)];
  EXPECT_GE(tried, 3);
  EXPECT_LE(tried, 5);  // with those that were under way
  EXPECT_EQ(tier->stats().promotions[static_cast<std::size_t>(DiskOutcome::off)], 8 - tried);
  EXPECT_EQ(tier->stats().off, "reading from " + path() + ": Input/output error, 3 times in a row");
  const auto try_again = [&] {
    Status status;
    while (!(status = tier->submit(job(DiskJobKind::promote, 3, {0, 1}))).ok()) {
      EXPECT_EQ(status.code(), Code::unsupported);
      EXPECT_NE(status.message().find("the disk is off: reading from"), std::string::npos);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return results()[3].failed;
  };
  EXPECT_EQ(try_again(), (Slots{0, 1}));  // one record tries, and fails
  EXPECT_EQ(tier->stats().promotions[static_cast<std::size_t>(DiskOutcome::io_error)], tried + 1);
  fault::disarm_all();
  EXPECT_LE(try_again().size(), 1u);  // one record tries; the other may come before that has ended
  EXPECT_EQ(tier->stats().off, "");
  EXPECT_EQ(tier->stats().times_off, 1);
  EXPECT_EQ(promote(range(0, 8)).failed, Slots());
}

TEST(DiskHealth, OnlyFailuresInARowCount) {
  const auto now = DiskHealth::Clock::now();
  DiskHealth health(2, 60);
  for (int i = 0; i < 5; ++i) {
    health.failed("why", now);
    EXPECT_TRUE(health.lets_through(now));
    health.worked();
  }
  health.failed("why", now), health.failed("why", now);
  EXPECT_TRUE(health.refuses(now));
  health.broke("for good");
  health.worked();
  EXPECT_EQ(health.off(), "for good");
  EXPECT_FALSE(health.lets_through(now + std::chrono::hours(1000)));
}

// Corrupted records say nothing about the disk's health.
TEST_F(DiskTierTest, RecordsThatDoNotVerifyTurnNothingOff) {
  options.most_failures = 2;
  open();
  EXPECT_EQ(promote(range(0, 16)).failed.size(), 16u);  // nothing was ever written
  EXPECT_EQ(tier->stats().off, "");
}

TEST_F(DiskTierTest, SyncFollowsTheWrites) {
  open();
  demote({0});
  fault::arm("slab_sync", 0, 1);
  EXPECT_EQ(tier->sync().code(), Code::unsupported);
  EXPECT_TRUE(tier->sync().ok());
  promote({0});
  fault::arm("slab_sync", 0, 1);
  EXPECT_TRUE(tier->sync().ok());  // nothing new
}

TEST_F(DiskTierTest, AForkUsesNothing) {
  open();
  EXPECT_EQ(in_child([&] {
              const bool refused = tier->submit(job(DiskJobKind::demote, 1, {0})).code() == Code::forked;
              tier.reset();  // waits for nobody
              return refused ? 0 : 1;
            }),
            0);
  EXPECT_EQ(demote({0}).failed, Slots());
}

}  // namespace
}  // namespace kvo
