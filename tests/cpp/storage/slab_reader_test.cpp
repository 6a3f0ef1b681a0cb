#include "storage/slab_reader.h"

#include "storage/slab.h"
#include "storage/storage_fixture.h"

namespace kvo {
namespace {

constexpr std::int64_t kSlot = 16 * KiB;
constexpr std::int64_t kOffsets[] = {0, kSlot, 20 * kSlot};

// A slab over two directories with three records, written as a tier does.
struct SlabReaderTest : StorageTest {
  SlabReaderTest() {
    SlabOptions options;
    options.directories = {dir.make("a"), dir.make("b")};
    options.plan = {1 * MiB, 256 * KiB, {kSlot, 4 * KiB}, 2};
    options.cap_bytes = options.plan.disk_bytes();
    options.fingerprint = owner.fingerprint, options.rank = owner.rank;
    auto slab = Slab::open(options);
    EXPECT_EQ(slab.status().message(), "");
    EXPECT_TRUE((*slab)->set_identity(77).ok());
    paths = (*slab)->paths();
    for (const std::int64_t offset : kOffsets) {
      const Memory slot(kSlot, static_cast<unsigned>(offset));
      const SlabPlace place = options.plan.place_of(offset, kSlot);
      seal_record(slot.at(), kSlot, owner, name);
      EXPECT_EQ(pwrite((*slab)->files()[place.file], slot.at(), kSlot, place.offset), kSlot);
    }
  }
  std::unique_ptr<SlabReader> open(bool writable = false) {
    auto reader = SlabReader::open(paths, writable);
    EXPECT_EQ(reader.status().message(), "");
    return reader.ok() ? std::move(*reader) : nullptr;
  }

  RecordOwner owner{"a fingerprint", 3};
  RecordName name{0, "sixteen bytes of", 10000, 42, 7};
  std::vector<std::string> paths;
};

TEST_F(SlabReaderTest, KnowsTheSlabFromItsFilesInAnyOrder) {
  for (int turn = 0; turn < 2; ++turn, std::swap(paths[0], paths[1])) {
    const auto reader = open();
    EXPECT_EQ(reader->owner().fingerprint, owner.fingerprint);
    EXPECT_EQ(reader->owner().rank, 3);
    EXPECT_EQ(reader->identity(), 77U);
    EXPECT_EQ(reader->plan().slot_bytes, (std::vector<std::int64_t>{kSlot, 4 * KiB}));
    EXPECT_EQ(reader->plan().bytes, 1 * MiB);
    for (const std::int64_t offset : kOffsets) EXPECT_EQ(reader->check(name, offset), SlotState::valid) << offset;
    EXPECT_EQ(reader->check(name, 2 * kSlot), SlotState::none);
    EXPECT_EQ(reader->check(name, 1 * MiB), SlotState::unreadable);
    EXPECT_EQ(reader->check(name, -kSlot), SlotState::unreadable);
  }
}

TEST_F(SlabReaderTest, SaysWhatIsWrongWithARecord) {
  const auto reader = open();
  RecordName other = name;
  other.key = "not of that slot";
  EXPECT_EQ(reader->check(other, 0), SlotState::identity);
  const std::string too_long(1000, 'k');
  other.key = too_long;
  EXPECT_EQ(reader->check(other, 0), SlotState::identity);
  for (const auto& [sequence, epoch] : {std::pair{41, 7}, std::pair{42, 8}}) {
    other = name, other.sequence = sequence, other.epoch = epoch;
    EXPECT_EQ(reader->check(other, 0), SlotState::stale);
  }
  const UniqueFd file(::open(paths[0].c_str(), O_RDWR));
  EXPECT_EQ(pwrite(file.get(), "?", 1, kSlabHeaderBytes + 99), 1);
  EXPECT_EQ(reader->check(name, 0), SlotState::checksum);
}

TEST_F(SlabReaderTest, ErasesARecordAndNoOther) {
  EXPECT_FALSE(open()->erase(0, 0).ok());  // opened for reading
  const auto reader = open(true);
  EXPECT_EQ(reader->trailer(0, kSlot)->key, name.key);
  EXPECT_TRUE(reader->erase(0, kSlot).ok());
  EXPECT_TRUE(reader->sync().ok());
  EXPECT_FALSE(reader->trailer(0, kSlot));
  EXPECT_EQ(reader->check(name, kSlot), SlotState::none);
  EXPECT_EQ(reader->check(name, 0), SlotState::valid);
  EXPECT_EQ(reader->check(name, 20 * kSlot), SlotState::valid);
  EXPECT_EQ(reader->erase(0, 1 * MiB).code(), Code::invalid);
}

TEST_F(SlabReaderTest, RefusesWhatIsNoSlabAndHalfOfOne) {
  EXPECT_EQ(SlabReader::open({paths[0]}, false).status().code(), Code::unsupported);
  EXPECT_EQ(SlabReader::open({paths[0], paths[0]}, false).status().code(), Code::invalid);
  EXPECT_EQ(SlabReader::open({}, false).status().code(), Code::unsupported);
  EXPECT_EQ(SlabReader::open({"/dev/zero"}, false).status().code(), Code::invalid);
  ASSERT_EQ(truncate(paths[1].c_str(), 100), 0);
  EXPECT_EQ(SlabReader::open(paths, false).status().code(), Code::invalid);
}

TEST_F(SlabReaderTest, FilesOfTwoCachesHaveNoIdentity) {
  const UniqueFd file(::open(paths[1].c_str(), O_RDWR));
  SlabHeader header;
  ASSERT_EQ(pread(file.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  header.identity = 78;
  header.sign();
  ASSERT_EQ(pwrite(file.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  EXPECT_EQ(open()->identity(), 0U);
}

}  // namespace
}  // namespace kvo
