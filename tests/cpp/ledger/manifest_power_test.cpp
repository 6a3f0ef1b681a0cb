// Power cuts and kills at random moments of a random workload, on a disk that loses and reorders what was not synced.
// KVO_POWER_CUTS: how many; the figures are in the test's output (bench/crash.py makes a result of them).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/crc32c.h"
#include "ledger/lossy_files.h"
#include "ledger/manifest_log.h"

namespace kvo {
namespace {

constexpr std::int64_t kRecordBytes = 1536;
const std::vector<std::int64_t> kSlots{40, 24};
const char* const kSlabs[] = {"cache/rank0", "cache/rank1"};

struct Trailer {
  std::int64_t key, sequence, epoch;
  std::uint32_t crc, reserved;
};

// What a key means changes with the epoch: right bytes of an old epoch are wrong ones.
std::vector<char> record_of(std::int64_t key, std::int64_t sequence, std::int64_t epoch) {
  std::vector<char> bytes(kRecordBytes);
  std::mt19937_64 random(key * 1000 + epoch);
  for (char& byte : bytes) byte = static_cast<char>(random());
  Trailer trailer{key, sequence, epoch, 0, 0};
  trailer.crc = crc32c(&trailer, sizeof trailer, crc32c(bytes.data(), kRecordBytes - sizeof trailer));
  std::memcpy(bytes.data() + kRecordBytes - sizeof trailer, &trailer, sizeof trailer);
  return bytes;
}

struct Tally {
  int cuts = 0, kills = 0;
  std::int64_t wrong_bytes = 0, lost_durable = 0, lost_committed = 0, lost_epochs = 0, unbacked = 0, turned_off = 0;
  std::int64_t durable_keys = 0, committed_keys = 0, compactions = 0, resets = 0;
};

class World {
 public:
  World(std::uint64_t seed, Tally& tally) : random_(seed), files_(seed + 1), tally_(tally) { open(); }

  void live_and_die() {
    const bool kill = one_in(3);
    files_.cut_after(kill ? 100'000 : 1 + random_() % 600);
    const int steps = 20 + random_() % 400;
    for (int i = 1; i < steps && !files_.cut(); ++i) i % 40 == 0 ? maintain() : step();
    tally_.turned_off += !files_.cut() && !log_->stats().off.empty();
    if (!kill) files_.cut_after(0);
    tally_.compactions += log_->stats().compactions;
    log_.reset();
    data_.clear();
    kill ? ++tally_.kills : ++tally_.cuts;
    power_lost_ = false;
    if (!kill) lose_power();
    open();
    check();
  }

 private:
  struct Chunk {
    int group;
    std::int64_t slot, sequence;
    bool durable;
  };

  bool one_in(int n) { return random_() % n == 0; }

  void lose_power() {
    files_.restart();
    ++boot_;
    power_lost_ = true;
  }

  // The power may go while the manifest is read and written anew, too.
  void open() {
    if (one_in(4)) files_.cut_after(1 + random_() % 12);
    while (!try_open()) lose_power();
    files_.cut_after(INT64_MAX);
  }

  bool try_open() {
    data_.clear();
    for (const char* slab : kSlabs) {
      auto file = files_.open(slab, OpenMode::existing);
      if (file.ok() && !*file) file = files_.open(slab, OpenMode::empty);
      if (!file.ok() || !files_.sync_directory("cache").ok()) return false;
      data_.push_back(std::move(*file));
    }
    auto log = ManifestLog::open({.directory = "cache",
                                  .fingerprint = "a model",
                                  .slots = kSlots,
                                  .sync_data = [this] { return sync_data(); },
                                  .compact_bytes = 3000,  // and as much again must take 40 steps
                                  .boot = boot_,
                                  .files = &files_});
    if (log.ok()) log_ = std::move(*log);
    return log.ok();
  }

  Status sync_data() {
    if (one_in(20)) return Status(Code::unsupported, "data cannot be synced (injected)");
    for (const auto& file : data_) KVO_TRY(file->sync());
    return {};
  }

  static std::int64_t offset_of(int group, std::int64_t slot) { return (group * kSlots[0] + slot) * kRecordBytes; }
  static std::string name_of(std::int64_t key) { return "key of a chunk " + std::to_string(100'000 + key); }
  static std::int64_t key_of(const std::string& name) { return std::stoll(name.substr(15)) - 100'000; }

  void step() {
    const auto dice = random_() % 200;
    if (dice == 0) return reset();
    if (dice < 20) return maintain();
    const std::int64_t key = random_() % 120;
    if (const auto found = chunks_.find(key); found != chunks_.end()) return dice < 40 ? forget(found) : void();
    store(key);
  }

  void store(std::int64_t key) {
    const int group = static_cast<int>(random_() % 2);
    const Chunk chunk{group, static_cast<std::int64_t>(random_() % kSlots[group]), sequence_++, false};
    for (auto it = chunks_.begin(); it != chunks_.end(); ++it) {
      if (it->second.group != group || it->second.slot != chunk.slot) continue;
      forget(it);
      break;
    }
    const std::vector<char> record = record_of(key, chunk.sequence, epoch_);
    for (const auto& file : data_) {
      if (!file->write(offset_of(group, chunk.slot), record.data(), kRecordBytes).ok()) return;
    }
    const std::string name = name_of(key);
    const ManifestCommit commit{name, chunk.slot, chunk.sequence};
    log_->commit(epoch_, group, {&commit, 1});
    if (log_->stats().off.empty()) chunks_[key] = chunk;
  }

  void forget(std::map<std::int64_t, Chunk>::iterator chunk) {
    log_->free(chunk->second.group, {&chunk->second.slot, 1});
    chunks_.erase(chunk);
  }

  void maintain() {
    if (!log_->maintain().ok()) return;
    for (auto& [key, chunk] : chunks_) chunk.durable = true;
  }

  void reset() {
    chunks_.clear();
    begun_epoch_ = epoch_ + 1;
    if (!log_->reset().ok()) return;
    epoch_ = log_->stats().epoch;
    ++tally_.resets;
  }

  bool verifies(std::int64_t key, const CommittedChunk& chunk, std::int64_t epoch) {
    for (const auto& file : data_) {
      std::vector<char> record(kRecordBytes);
      Trailer trailer;
      auto got = file->read(offset_of(chunk.group, chunk.slot), record.data(), kRecordBytes);
      if (!got.ok() || *got < kRecordBytes) return false;
      std::memcpy(&trailer, record.data() + kRecordBytes - sizeof trailer, sizeof trailer);
      const std::uint32_t crc = std::exchange(trailer.crc, 0);
      if (crc != crc32c(&trailer, sizeof trailer, crc32c(record.data(), kRecordBytes - sizeof trailer))) return false;
      if (trailer.key != key || trailer.sequence != chunk.sequence || trailer.epoch != epoch) return false;
      tally_.wrong_bytes += record != record_of(key, chunk.sequence, epoch_);
    }
    return true;
  }

  void check() {
    const std::int64_t epoch = log_->stats().epoch;
    tally_.lost_epochs += epoch != epoch_ && epoch != begun_epoch_;
    epoch_ = epoch;
    std::map<std::int64_t, Chunk> found;
    for (const CommittedChunk& chunk : log_->opening().chunks) {
      const std::int64_t key = key_of(chunk.key);
      const bool verified = verifies(key, chunk, epoch);
      // One whose free was not durable may be named without its bytes; any other may not.
      tally_.unbacked += !verified && chunks_.contains(key) && chunks_[key].sequence == chunk.sequence;
      const bool durable = power_lost_ || (chunks_.contains(key) && chunks_[key].durable);
      if (verified) found[key] = {chunk.group, chunk.slot, chunk.sequence, durable};
      if (!verified) log_->free(chunk.group, {&chunk.slot, 1});
    }
    for (const auto& [key, chunk] : chunks_) {
      const bool there = found.contains(key) && found[key].sequence == chunk.sequence;
      tally_.durable_keys += chunk.durable;
      tally_.committed_keys += !power_lost_;
      tally_.lost_durable += chunk.durable && !there;
      tally_.lost_committed += !power_lost_ && !there;
    }
    chunks_ = std::move(found);
    sequence_ = std::max(sequence_, log_->first_sequence());
  }

  std::mt19937_64 random_;
  LossyFiles files_;
  Tally& tally_;
  std::unique_ptr<ManifestLog> log_;
  std::vector<std::unique_ptr<File>> data_;
  std::map<std::int64_t, Chunk> chunks_;
  std::uint64_t boot_ = 1;
  bool power_lost_ = false;
  std::int64_t sequence_ = 1, epoch_ = 1, begun_epoch_ = 1;
};

TEST(ManifestPower, NeverWrongBytesNeverALostDurableKey) {
  const char* asked = std::getenv("KVO_POWER_CUTS");
  const int cuts = asked ? std::atoi(asked) : 200;
  Tally tally;
  for (std::uint64_t seed = 0; tally.cuts < cuts; ++seed) {
    World world(seed, tally);
    for (int i = 0; i < 8; ++i) world.live_and_die();
  }
  EXPECT_EQ(tally.wrong_bytes, 0);
  EXPECT_EQ(tally.lost_durable, 0);
  EXPECT_EQ(tally.lost_committed, 0);
  EXPECT_EQ(tally.lost_epochs, 0);
  EXPECT_EQ(tally.unbacked, 0);
  EXPECT_EQ(tally.turned_off, 0);
  // It did happen.
  EXPECT_GT(tally.durable_keys, 10 * cuts);
  EXPECT_GT(tally.committed_keys, 2 * cuts);
  EXPECT_GT(tally.compactions, cuts / 2);
  EXPECT_GT(tally.resets, cuts / 10);
  const auto record = [](const char* name, std::int64_t value) { RecordProperty(name, std::to_string(value)); };
  record("cuts", tally.cuts);
  record("kills", tally.kills);
  record("wrong_bytes", tally.wrong_bytes);
  record("lost_durable", tally.lost_durable);
  record("lost_committed", tally.lost_committed);
  record("durable_keys", tally.durable_keys);
  record("compactions", tally.compactions);
  record("resets", tally.resets);
}

}  // namespace
}  // namespace kvo
