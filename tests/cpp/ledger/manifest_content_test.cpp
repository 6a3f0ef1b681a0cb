#include "ledger/manifest_content.h"

#include "ledger/manifest_fixture.h"

namespace kvo {
namespace {

struct ManifestContentTest : ManifestTest {
  ManifestContentTest() { reopen(); }
  Result<ManifestContent> read(std::uint64_t boot = 0) { return read_manifest(path(), boot); }
  static std::vector<std::int64_t> slots_of(const ManifestContent& content) {
    std::vector<std::int64_t> slots;
    for (const CommittedChunk& chunk : content.chunks) slots.push_back(chunk.slot);
    return slots;
  }
};

TEST_F(ManifestContentTest, IsWhatAnOpeningWouldBelieve) {
  for (std::int64_t i = 0; i < 20; ++i) commit(i, i, i + 1, static_cast<int>(i % 2));
  free(4);
  commit(30, 6, 50);
  const auto content = read().operator*();
  Found found;
  for (const CommittedChunk& chunk : content.chunks) found[chunk.key] = {chunk.slot, chunk.sequence};
  EXPECT_EQ(content.header.identity, manifest->identity());
  EXPECT_EQ(content.bytes, bytes());
  EXPECT_EQ(content.torn_bytes + content.damaged_bytes + content.unsynced_chunks, 0);
  EXPECT_EQ(found.size(), 19U);
  EXPECT_EQ(found, reopen());
}

TEST_F(ManifestContentTest, ChangesNothing) {
  commit(1, 1, 1);
  std::filesystem::resize_file(path(), bytes() - 3);
  const std::string before = content();
  EXPECT_EQ(read()->chunks.size(), 0U);
  EXPECT_GT(read()->torn_bytes, 0);
  EXPECT_EQ(content(), before);
}

TEST_F(ManifestContentTest, FromDamageOnNothingIsBelieved) {
  std::int64_t ends[3];
  for (std::int64_t i = 0; i < 3; ++i) commit(i, i, i + 1), ends[i] = bytes();
  std::fstream(path(), std::ios::in | std::ios::out | std::ios::binary).seekp(ends[0] + 40).put('?');
  const auto content = read().operator*();
  EXPECT_EQ(slots_of(content), std::vector<std::int64_t>{0});
  EXPECT_EQ(content.damaged_bytes, ends[2] - ends[0]);
  EXPECT_EQ(content.torn_bytes, 0);
}

TEST_F(ManifestContentTest, AfterAnotherStartOfTheMachineOnlyWhatWasSynced) {
  commit(1, 1, 1);
  ASSERT_TRUE(manifest->flush(soon()).ok());
  commit(2, 2, 2);
  EXPECT_EQ(slots_of(*read()), (std::vector<std::int64_t>{1, 2}));
  const auto later = read(12345).operator*();
  EXPECT_EQ(slots_of(later), std::vector<std::int64_t>{1});
  EXPECT_EQ(later.unsynced_chunks, 1);
}

TEST_F(ManifestContentTest, RefusesWhatIsNoManifest) {
  EXPECT_EQ(read_manifest(options.directory + "/nothing").status().code(), Code::invalid);
  EXPECT_FALSE(read_manifest(options.directory).ok());
  std::filesystem::resize_file(path(), 100);
  EXPECT_EQ(read().status().code(), Code::invalid);
}

}  // namespace
}  // namespace kvo
