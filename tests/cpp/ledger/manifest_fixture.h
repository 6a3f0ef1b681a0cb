// A manifest in a directory that goes with the test.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fault.h"
#include "ledger/manifest.h"

namespace kvo {

inline std::string key_of(std::int64_t i) { return "key of thirty-two bytes #" + std::to_string(1'000'000 + i); }
inline Manifest::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

struct ManifestTest : testing::Test {
  using Found = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;  // key -> slot, sequence

  ManifestTest() {
    std::string name = (std::filesystem::temp_directory_path() / "manifest-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) options.directory = name;
    options.fingerprint = "a model";
    options.slots = {100, 100};
    options.sync_seconds = 60;  // tests flush
  }
  ~ManifestTest() override {
    fault::disarm_all();
    manifest.reset();
    std::filesystem::remove_all(options.directory);
  }

  std::string path() const { return options.directory + "/manifest"; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(std::filesystem::file_size(path())); }

  // As after a SIGKILL: what was not synced is still in the file.
  Found reopen() {
    manifest.reset();
    auto opened = Manifest::open(options);
    EXPECT_EQ(opened.status().message(), "");
    if (!opened.ok()) return {};
    manifest = std::move(*opened);
    opening = manifest->take_opening();
    Found found;
    for (const CommittedChunk& chunk : opening.chunks) found[chunk.key] = {chunk.slot, chunk.sequence};
    return found;
  }

  void commit(std::int64_t key, std::int64_t slot, std::int64_t sequence, int group = 0) {
    const std::string name = key_of(key);
    const ManifestCommit chunk{name, slot, sequence};
    manifest->commit(manifest->stats().epoch, group, {&chunk, 1});
  }
  void free(std::int64_t slot, int group = 0) { manifest->free(group, {&slot, 1}); }

  std::string content() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& content) const { std::ofstream(path(), std::ios::binary) << content; }

  ManifestOptions options;
  std::unique_ptr<Manifest> manifest;
  ManifestOpening opening;
};

}  // namespace kvo
