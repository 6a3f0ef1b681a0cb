#include "storage/record.h"

#include "storage/storage_fixture.h"

namespace kvo {
namespace {

constexpr std::int64_t kSlotBytes = 8192, kPayloadBytes = 6000;

struct RecordTest : testing::Test {
  RecordTest() { seal_record(slot.at(), kSlotBytes, owner, name); }
  RecordState verify() { return verify_record(slot.at(), kSlotBytes, owner, name); }

  RecordOwner owner{"a fingerprint", 3};
  RecordName name{1, "sixteen bytes of", kPayloadBytes, 42, 7};
  Memory slot{kSlotBytes};
};

TEST_F(RecordTest, IsWhatWasSealed) {
  EXPECT_EQ(verify(), RecordState::valid);
  const Memory payload(kSlotBytes);  // of the same seed
  EXPECT_EQ(std::memcmp(slot.at(), payload.at(), kPayloadBytes), 0);
}

TEST_F(RecordTest, NothingElseThatTheSlotHeldIsInIt) {
  for (std::int64_t i = kPayloadBytes; i < kSlotBytes - kRecordTrailerBytes; ++i) {
    ASSERT_EQ(slot.at()[i], std::byte{0}) << i;
  }
}

TEST_F(RecordTest, AnyBitThatChangesIsSeen) {
  for (std::int64_t bit = 0; bit < kSlotBytes * 8; bit += 5) {
    slot.at()[bit / 8] ^= std::byte(1 << bit % 8);
    ASSERT_EQ(verify(), RecordState::checksum) << bit;
    slot.at()[bit / 8] ^= std::byte(1 << bit % 8);
  }
  EXPECT_EQ(verify(), RecordState::valid);
  slot.clear();
  EXPECT_EQ(verify(), RecordState::checksum);
}

TEST_F(RecordTest, ItSaysWhoseItIs) {
  const RecordOwner owners[] = {{"a fingerprinz", 3}, {"a fingerprint ", 3}, {"a fingerprint", 2}};
  for (const RecordOwner& other : owners) {
    EXPECT_EQ(verify_record(slot.at(), kSlotBytes, other, name), RecordState::identity);
  }
  const RecordName names[] = {{0, "sixteen bytes of", kPayloadBytes, 42, 7},
                              {1, "sixteen bytes oF", kPayloadBytes, 42, 7},
                              {1, std::string_view("sixteen bytes of\0", 17), kPayloadBytes, 42, 7},
                              {1, "sixteen bytes of", kPayloadBytes - 1, 42, 7},
                              {1, "sixteen bytes oF", kPayloadBytes, 42, 8}};
  for (const RecordName& other : names) {
    EXPECT_EQ(verify_record(slot.at(), kSlotBytes, owner, other), RecordState::identity);
  }
}

TEST_F(RecordTest, AnEarlierOneOfTheSameKeyIsStale) {
  name.epoch = 8;
  EXPECT_EQ(verify(), RecordState::stale);
  name.epoch = 7, name.sequence = 43;
  EXPECT_EQ(verify(), RecordState::stale);
  name.sequence = 0;  // any
  EXPECT_EQ(verify(), RecordState::valid);
}

TEST_F(RecordTest, ASlotMayBeFullUpToItsTrailer) {
  name.payload_bytes = kSlotBytes - kRecordTrailerBytes;
  seal_record(slot.at(), kSlotBytes, owner, name);
  EXPECT_EQ(verify(), RecordState::valid);
}

TEST_F(RecordTest, LongNamesAreRefused) {
  const std::string longest(256, 'k'), longer(257, 'k');
  EXPECT_TRUE(check_name(owner, {0, longest}).ok());
  EXPECT_EQ(check_name(owner, {0, longer}).code(), Code::invalid);
  EXPECT_EQ(check_name({std::string(129, 'f'), 0}, {0, "k"}).code(), Code::invalid);
  name.key = longest;
  seal_record(slot.at(), kSlotBytes, owner, name);
  EXPECT_EQ(verify(), RecordState::valid);
}

// The format of docs/file-format.md: what is on somebody's disk must stay readable.
TEST_F(RecordTest, LiesAsTheDocumentSays) {
  const std::byte* trailer = slot.at(kSlotBytes - 512);
  const auto number = [&](int offset, auto value) {
    std::memcpy(&value, trailer + offset, sizeof value);
    return value;
  };
  EXPECT_EQ(std::memcmp(trailer, "KVORECRD", 8), 0);
  EXPECT_EQ(number(8, 0u), 1u);
  EXPECT_EQ(number(12, 0), 1);
  EXPECT_EQ(number(16, 0), 3);
  EXPECT_EQ(number(20, std::uint16_t{}), 13);
  EXPECT_EQ(number(22, std::uint16_t{}), 16);
  EXPECT_EQ(number(24, std::int64_t{}), 42);
  EXPECT_EQ(number(32, std::int64_t{}), 7);
  EXPECT_EQ(number(40, std::int64_t{}), kPayloadBytes);
  EXPECT_EQ(std::memcmp(trailer + 96, "a fingerprint\0", 14), 0);
  EXPECT_EQ(std::memcmp(trailer + 224, "sixteen bytes of\0", 17), 0);
}

}  // namespace
}  // namespace kvo
