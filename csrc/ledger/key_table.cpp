#include "ledger/key_table.h"

#include <algorithm>
#include <bit>

namespace kvo {

void KeyTable::reserve(std::size_t keys) {
  const std::size_t count = std::bit_ceil(2 * keys);
  if (count <= cells_.size()) return;
  std::vector<Cell> old(count);
  old.swap(cells_);
  for (const Cell& cell : old) {
    if (cell.entry) place(cell);
  }
}

void KeyTable::place(Cell cell) {
  std::size_t at = home(cell.hash);
  while (cells_[at].entry) at = after(at);
  cells_[at] = cell;
}

Entry* KeyTable::find(std::string_view key, std::uint64_t hash) const {
  for (std::size_t at = home(hash); cells_[at].entry; at = after(at)) {
    if (cells_[at].hash == hash && cells_[at].entry->key == key) return cells_[at].entry;
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
  for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(cells_[home(hashes[i])].entry);
  for (std::size_t i = 0; i < count; ++i) found[i] = find(keys[i], hashes[i]);
  return found;
}

void KeyTable::insert(Entry* entry) {
  reserve(++size_);
  place({hash_of(entry->key), entry});
}

// The cells that follow move up, so that no search ends early at the hole.
void KeyTable::erase(Entry* entry) {
  std::size_t hole = home(hash_of(entry->key));
  while (cells_[hole].entry != entry) hole = after(hole);
  for (std::size_t at = after(hole); cells_[at].entry; at = after(at)) {
    const std::size_t mask = cells_.size() - 1;
    if (((at - home(cells_[at].hash)) & mask) < ((at - hole) & mask)) continue;  // its home is behind the hole
    cells_[hole] = cells_[at];
    hole = at;
  }
  cells_[hole] = {};
  --size_;
}

}  // namespace kvo
