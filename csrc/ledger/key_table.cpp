#include "ledger/key_table.h"

#include <algorithm>
#include <bit>

namespace kvo {

void KeyTable::reserve(std::size_t keys) {
  const std::size_t count = std::bit_ceil(2 * keys);
  if (count <= cells_.size()) return;
  std::vector<Cell> old(count);
  old.swap(cells_);
  for (const Cell cell : old) {
    if (cell) place(entry_of(cell));
  }
}

void KeyTable::place(Entry* entry) {
  const std::uint64_t hash = hash_of(entry->key.view());
  std::size_t at = home(hash);
  while (cells_[at]) at = after(at);
  cells_[at] = hash >> kTagShift << kTagShift | reinterpret_cast<Cell>(entry);
}

Entry* KeyTable::find(std::string_view key, std::uint64_t hash) const {
  for (std::size_t at = home(hash); cells_[at]; at = after(at)) {
    Entry* entry = entry_of(cells_[at]);
    if (same_tag(cells_[at], hash) && entry->key.view() == key) return entry;
  }
  return nullptr;
}

KeyTable::Batch KeyTable::find_many(std::span<const std::string_view> keys) const {
  Batch found{};
  std::array<std::uint64_t, kBatch> hashes;
  const std::size_t count = std::min(keys.size(), kBatch);
  for (std::size_t i = 0; i < count; ++i) {
    hashes[i] = hash_of(keys[i]);
    __builtin_prefetch(&cells_[home(hashes[i])]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Cell cell = cells_[home(hashes[i])];
    if (!cell || !same_tag(cell, hashes[i])) continue;
    __builtin_prefetch(entry_of(cell));
    __builtin_prefetch(&entry_of(cell)->key);  // perhaps the next cache line
  }
  for (std::size_t i = 0; i < count; ++i) found[i] = find(keys[i], hashes[i]);
  return found;
}

void KeyTable::insert(Entry* entry) {
  reserve(++size_);
  place(entry);
}

// The cells that follow move up, so that no search ends early at the hole.
void KeyTable::erase(Entry* entry) {
  std::size_t hole = home(hash_of(entry->key.view()));
  while (entry_of(cells_[hole]) != entry) hole = after(hole);
  for (std::size_t at = after(hole); cells_[at]; at = after(at)) {
    const std::size_t mask = cells_.size() - 1;
    if (((at - home_of(cells_[at])) & mask) < ((at - hole) & mask)) continue;  // its home is behind the hole
    cells_[hole] = cells_[at];
    hole = at;
  }
  cells_[hole] = 0;
  --size_;
}

}  // namespace kvo
