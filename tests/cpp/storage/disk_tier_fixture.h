// A disk tier of 64 slots and the memory of as many.
#pragma once
#include <algorithm>
#include <map>

#include "storage/storage_fixture.h"

namespace kvo {

struct DiskTierTest : StorageTest {
  static constexpr std::int64_t kSlot = 32 * KiB, kPayload = 30'000, kSlots = 64;

  DiskTierTest() {
    options.slab.directories = {dir.make("a")};
    options.slab.plan = {kSlots * kSlot, 16 * kSlot, {kSlot}, 1};
    options.slab.cap_bytes = GiB;
    options.slab.fingerprint = "fingerprint";
    options.slab.rank = 2, options.depth = 8;
    options.memory = memory.at(), options.memory_bytes = memory.bytes();
    options.memory_ready = [bytes = memory.bytes()] { return bytes; };
  }

  void open() {
    tier.reset();
    auto opened = DiskTier::open(options);
    ASSERT_EQ(opened.status().message(), "");
    tier = std::move(*opened);
  }

  static std::string key(std::int64_t i) { return "a key of some bytes " + std::to_string(i); }
  DiskJob job(DiskJobKind kind, std::int64_t id, const std::vector<std::int64_t>& slots) {
    DiskJob made;
    made.id = id, made.kind = kind, made.slot_bytes = kSlot, made.payload_bytes = kPayload, made.epoch = 1;
    made.deadline = soon();
    for (const std::int64_t slot : slots) {
      made.records.push_back({memory.at(slot * kSlot), slot * kSlot, key(slot), sequence});
    }
    return made;
  }
  static std::vector<std::int64_t> range(std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> slots;
    for (; from < to; ++from) slots.push_back(from);
    return slots;
  }

  // The results of all jobs so far, by job.
  std::map<std::int64_t, DiskJobResult> results() {
    std::map<std::int64_t, DiskJobResult> found;
    while (tier->stats().jobs > 0) {
      EXPECT_TRUE(tier->wait(soon()));
      for (DiskJobResult& result : tier->poll()) found[result.id] = std::move(result);
    }
    for (DiskJobResult& result : tier->poll()) found[result.id] = std::move(result);
    return found;
  }
  DiskJobResult run(DiskJob one) {
    const std::int64_t id = one.id;
    const Status status = tier->submit(std::move(one));
    EXPECT_EQ(status.message(), "");
    return results()[id];
  }
  DiskJobResult demote(const std::vector<std::int64_t>& slots) { return run(job(DiskJobKind::demote, 1, slots)); }
  DiskJobResult promote(const std::vector<std::int64_t>& slots) { return run(job(DiskJobKind::promote, 2, slots)); }

  void expect_payload(std::int64_t slot) {
    EXPECT_EQ(std::memcmp(memory.at(slot * kSlot), content.at(slot * kSlot), kPayload), 0) << slot;
  }
  std::string path(int i = 0) { return options.slab.directories[i] + "/slab"; }
  std::int64_t place(std::int64_t slot) { return options.slab.plan.place_of(slot * kSlot, kSlot).offset; }
  // Changes the file behind the tier's back.
  void on_disk(std::int64_t offset, const std::function<void(std::vector<char>&)>& change) {
    const UniqueFd fd(::open(path().c_str(), O_RDWR));
    std::vector<char> record(kSlot);
    ASSERT_EQ(pread(fd.get(), record.data(), kSlot, offset), kSlot);
    change(record);
    ASSERT_EQ(pwrite(fd.get(), record.data(), kSlot, offset), kSlot);
  }

  const Memory memory{kSlots * kSlot}, content{kSlots * kSlot};  // of the same seed
  DiskTierOptions options;
  std::int64_t sequence = 0;
  std::unique_ptr<DiskTier> tier;
};

using Slots = std::vector<std::int64_t>;

}  // namespace kvo
