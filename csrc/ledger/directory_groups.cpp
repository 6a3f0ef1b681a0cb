// Lookups over several groups at once.
#include <algorithm>

#include "ledger/directory.h"

namespace kvo {

namespace {

struct Found {  // per chunk the ready entries; null: none
  std::vector<Entry*> entries, records;
};

Entry* ready_or_null(Entry* entry) { return entry && entry->state == EntryState::ready ? entry : nullptr; }

// Where the whole prefix is needed, only up to the first chunk that is in neither tier. What is only on disk comes
// through host memory.
Found find_ready(const Tier& host, const Tier& disk, const GroupKeys& given) {
  Found found;
  const bool in_host = host.serves(given.group), on_disk = in_host && disk.serves(given.group);
  for (std::size_t start = 0; start < given.keys.size(); start += KeyTable::kBatch) {
    const Keys keys = given.keys.subspan(start, std::min(KeyTable::kBatch, given.keys.size() - start));
    const KeyTable::Batch entries = in_host ? host.find_many(given.group, keys) : KeyTable::Batch{};
    const KeyTable::Batch records = on_disk ? disk.find_many(given.group, keys) : KeyTable::Batch{};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Entry* entry = ready_or_null(entries[i]);
      Entry* record = ready_or_null(records[i]);
      if (!entry && !record && given.needs.window_tokens == kWholePrefix) return found;
      found.entries.push_back(entry), found.records.push_back(record);
    }
  }
  return found;
}

}  // namespace

Directory::GroupHits Directory::lookup_groups(std::span<const GroupKeys> groups, std::int64_t start_tokens, bool hold) {
  std::lock_guard lock(mutex_);
  std::vector<Found> found;
  std::vector<GroupChunks> in_host, in_any;
  for (const GroupKeys& given : groups) {
    const auto& [entries, records] = found.emplace_back(find_ready(host_, disk_, given));
    std::vector<bool> host(entries.size()), any(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) host[i] = entries[i], any[i] = entries[i] || records[i];
    in_host.push_back({given.needs, std::move(host)}), in_any.push_back({given.needs, std::move(any)});
    counters_.lookup_keys += static_cast<std::int64_t>(given.keys.size());
  }
  GroupHits hits{hit_end_tokens(in_host, start_tokens), hit_end_tokens(in_any, start_tokens), 0, 0};

  std::vector<Entry*> held, beyond, on_disk;  // what the hits need
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto [first, end] = groups[i].needs.chunks(start_tokens, hits.host_tokens);
    held.insert(held.end(), found[i].entries.begin() + first, found[i].entries.begin() + end);
    const auto [first_of_any, end_of_any] = groups[i].needs.chunks(start_tokens, hits.tokens);
    for (std::int64_t chunk = std::max(first_of_any, end); chunk < end_of_any; ++chunk) {
      if (found[i].entries[chunk])
        beyond.push_back(found[i].entries[chunk]);
      else
        on_disk.push_back(found[i].records[chunk]);
      ++counters_.disk_hit_keys;
    }
  }
  hits.held_keys = static_cast<std::int64_t>(held.size());
  counters_.hit_keys += hits.held_keys;
  looked_up(beyond, on_disk);
  looked_up(held, {});
  if (hold && !held.empty()) hits.hold = add_hold(std::move(held));
  return hits;
}

}  // namespace kvo
