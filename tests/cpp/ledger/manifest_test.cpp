// What is found again, and what of a file is believed.
#include <sys/stat.h>

#include "ledger/manifest_fixture.h"

namespace kvo {
namespace {

TEST_F(ManifestTest, FindsWhatWasCommittedAndNotFreed) {
  EXPECT_TRUE(reopen().empty());
  EXPECT_EQ(opening.not_believed, "");
  EXPECT_EQ(manifest->first_sequence(), 1);
  const std::uint64_t identity = manifest->identity();
  for (int i = 0; i < 10; ++i) commit(i, 50 + i, 7 + i, i % 2);
  free(52, 0);
  free(53, 0);         // group 1 has it
  commit(20, 54, 30);  // instead of key 4
  const Found expected{{key_of(0), {50, 7}},  {key_of(1), {51, 8}},  {key_of(3), {53, 10}},
                       {key_of(5), {55, 12}}, {key_of(6), {56, 13}}, {key_of(7), {57, 14}},
                       {key_of(8), {58, 15}}, {key_of(9), {59, 16}}, {key_of(20), {54, 30}}};
  EXPECT_EQ(reopen(), expected);
  EXPECT_EQ(manifest->first_sequence(), 31);
  EXPECT_EQ(manifest->identity(), identity);
  EXPECT_EQ(opening.chunks.back().key, key_of(20));  // in the order of commits
  EXPECT_EQ(opening.chunks[1].group, 1);
  EXPECT_EQ(reopen(), expected);
  free(54);
  reopen();
  reopen();
  EXPECT_EQ(manifest->first_sequence(), 31);  // also when the highest is gone
}

TEST_F(ManifestTest, ALowerCapDropsItsSlotsForGood) {
  reopen();
  commit(1, 10, 1);
  commit(2, 40, 2);
  commit(3, 40, 3, 1);
  options.slots = {40};
  EXPECT_EQ(reopen(), (Found{{key_of(1), {10, 1}}}));
  EXPECT_EQ(opening.over_cap_commits, 2);
  commit(4, 40, 4);
  commit(5, -1, 5);
  free(0, 7);
  EXPECT_EQ(manifest->stats().dropped_records, 3);
  options.slots = {100, 100};
  EXPECT_EQ(reopen().size(), 1);
}

TEST_F(ManifestTest, KeysOfAnyLengthUpToTheLongest) {
  reopen();
  const std::vector<std::string> keys{std::string(16, 'a'), std::string(17, '\0'), std::string(1024, 'c'),
                                      std::string(1025, 'd')};
  for (const std::string& key : keys) {
    const ManifestCommit chunk{key, static_cast<std::int64_t>(key.size() % 100), 1};
    manifest->commit(1, 0, {&chunk, 1});
  }
  EXPECT_EQ(manifest->stats().dropped_records, 1);
  const Found found = reopen();
  EXPECT_EQ(found.size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(found.contains(keys[i])) << i;
}

TEST_F(ManifestTest, ATornTailIsCut) {
  reopen();
  commit(1, 1, 1);
  const std::int64_t whole = bytes();
  commit(2, 2, 2);
  const std::string content = this->content();
  for (std::int64_t end = whole; end < static_cast<std::int64_t>(content.size()); ++end) {
    manifest.reset();
    write(content.substr(0, end));
    EXPECT_EQ(reopen(), (Found{{key_of(1), {1, 1}}})) << end;
    EXPECT_EQ(opening.torn_bytes, end - whole);
    EXPECT_EQ(opening.damaged_bytes, 0);
    EXPECT_EQ(opening.not_believed, "");
  }
  commit(3, 3, 3);
  EXPECT_EQ(reopen().size(), 2) << "what is appended after a cut tail counts";
}

TEST_F(ManifestTest, NothingBehindADamagedMiddleIsBelieved) {
  reopen();
  for (int i = 0; i < 3; ++i) commit(i, i, i + 1);
  const std::string content = this->content();
  const std::size_t record_bytes = (content.size() - kManifestHeaderBytes) / 3;
  const std::size_t second = content.size() - 2 * record_bytes;
  for (std::size_t at = second; at < second + record_bytes; ++at) {
    manifest.reset();
    std::string damaged = content;
    damaged[at] ^= 4;
    write(damaged);
    EXPECT_EQ(reopen(), (Found{{key_of(0), {0, 1}}})) << at;
    EXPECT_EQ(opening.damaged_bytes, static_cast<std::int64_t>(2 * record_bytes)) << at;
    EXPECT_NE(opening.not_believed.find("damaged at byte " + std::to_string(second)), std::string::npos);
  }
}

TEST_F(ManifestTest, ARecordOfAnotherPlaceOrFileIsDamage) {
  reopen();
  for (int i = 0; i < 3; ++i) commit(i, i, i + 1);
  const std::string content = this->content();
  const std::size_t bytes = (content.size() - kManifestHeaderBytes) / 3;
  std::string moved = content;
  moved.replace(moved.size() - 2 * bytes, bytes, content, content.size() - bytes, bytes);
  manifest.reset();
  write(moved);
  EXPECT_EQ(reopen().size(), 1);
  manifest.reset();
  write(this->content().substr(0, kManifestHeaderBytes) + content.substr(kManifestHeaderBytes));
  EXPECT_EQ(reopen().size(), 0);
}

TEST_F(ManifestTest, WhatIsNoManifestOfThisContentIsReplaced) {
  reopen();
  commit(1, 1, 1);
  EXPECT_TRUE(manifest->reset(soon()).ok());
  commit(2, 2, 2);
  manifest.reset();
  const std::string good = content();
  std::string magic = good, version = good, header = good;
  magic[0] = 'X';
  version[8] = 9;
  header[100] ^= 1;
  const std::pair<std::string, std::string> cases[] = {{"", "too short"},
                                                       {good.substr(0, 511), "too short"},
                                                       {std::string(9000, 'x'), "no manifest"},
                                                       {magic, "no manifest"},
                                                       {version, "version 9"},
                                                       {header, "header is damaged"}};
  for (const auto& [bytes, reason] : cases) {
    write(good);
    EXPECT_EQ(reopen().size(), 1);
    const std::uint64_t identity = manifest->identity();
    manifest.reset();
    write(bytes);
    EXPECT_TRUE(reopen().empty());
    EXPECT_NE(opening.not_believed.find(reason), std::string::npos) << opening.not_believed;
    EXPECT_NE(manifest->identity(), identity) << "slabs of the old manifest must not match";
    EXPECT_TRUE(reopen().empty());
    EXPECT_EQ(opening.not_believed, "");
    manifest.reset();
  }
  write(good);
  options.fingerprint = "another model";
  EXPECT_TRUE(reopen().empty());
  EXPECT_NE(opening.not_believed.find("fingerprint a model"), std::string::npos) << opening.not_believed;
}

TEST_F(ManifestTest, CommitsWhoseDataMayBeLostAreDroppedAfterTheMachineWentDown) {
  options.boot = 1;
  reopen();
  commit(1, 1, 1);
  EXPECT_TRUE(manifest->flush(soon()).ok());
  commit(2, 2, 2);
  const std::string content = this->content();
  EXPECT_EQ(reopen().size(), 2) << "a kill alone loses nothing";
  manifest.reset();
  write(content);
  options.boot = 2;
  EXPECT_EQ(reopen(), (Found{{key_of(1), {1, 1}}}));
  EXPECT_EQ(opening.unsynced_chunks, 1);
  EXPECT_EQ(reopen().size(), 1) << "and stays dropped";
}

TEST_F(ManifestTest, FilesArePrivateAndLinksAreNotFollowed) {
  const mode_t before = umask(0);
  reopen();
  umask(before);
  struct stat status;
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  manifest.reset();
  const std::string target = options.directory + "/elsewhere";
  std::filesystem::rename(path(), target);
  std::filesystem::create_symlink(target, path());
  EXPECT_FALSE(Manifest::open(options).ok());
  std::filesystem::remove(path());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_FALSE(Manifest::open(options).ok());
}

TEST_F(ManifestTest, RefusesAFingerprintThatDoesNotFit) {
  options.fingerprint = std::string(kMostFingerprintBytes, 'f');
  reopen();
  commit(1, 1, 1);
  EXPECT_EQ(reopen().size(), 1);
  options.fingerprint += "f";
  EXPECT_EQ(Manifest::open(options).status().code(), Code::invalid);
}

}  // namespace
}  // namespace kvo
