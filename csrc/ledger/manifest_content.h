// What a manifest says, read from outside: nothing is changed, and no lock is needed. Of one that is in use it is what
// was there a moment ago.
#pragma once
#include <string>
#include <vector>

#include "ledger/manifest_log.h"

namespace kvo {

struct ManifestContent {
  ManifestHeader header;
  std::vector<CommittedChunk> chunks;  // what an opening would believe, but for slots that its disk has not
  std::int64_t bytes = 0, torn_bytes = 0, damaged_bytes = 0;
  std::int64_t unsynced_chunks = 0;  // the machine went down before their data was on the medium: not in `chunks`
};

// invalid: there is none, or why nothing in it is believed. boot 0: the system's.
Result<ManifestContent> read_manifest(const std::string& path, std::uint64_t boot = 0,
                                      FileSystem& files = real_files());

}  // namespace kvo
