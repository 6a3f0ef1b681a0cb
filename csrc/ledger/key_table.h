// key -> Entry*, by open addressing. Long key lists are the ledger's hot path and each key is a cache miss or two:
// find_many() asks for a batch's memory ahead of its comparisons. A cell has 8 bytes: the address of an entry, of which
// user space has 47 bits, and 16 bits of its key's hash.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ledger/entry.h"

namespace kvo {

class KeyTable {
 public:
  static constexpr std::size_t kBatch = 64;
  using Batch = std::array<Entry*, kBatch>;  // null: absent

  static std::uint64_t hash_of(std::string_view key) { return std::hash<std::string_view>{}(key); }
  std::size_t size() const { return size_; }
  void reserve(std::size_t keys);

  Entry* find(std::string_view key) const { return find(key, hash_of(key)); }
  // The entries of the first kBatch of `keys`.
  Batch find_many(std::span<const std::string_view> keys) const;
  void insert(Entry* entry);  // its key is not in the table
  void erase(Entry* entry);   // its key is in the table

  // Empties the table, then calls `call` with each entry that was in it.
  template <class Call>
  void clear(Call call) {
    std::vector<Cell> cells(cells_.size());
    cells.swap(cells_);
    size_ = 0;
    for (const Cell cell : cells) {
      if (cell) call(entry_of(cell));
    }
  }

 private:
  using Cell = std::uint64_t;  // 0: empty
  static constexpr int kTagShift = 48;

  static Entry* entry_of(Cell cell) { return reinterpret_cast<Entry*>(cell & ((Cell{1} << kTagShift) - 1)); }
  static bool same_tag(Cell cell, std::uint64_t hash) { return cell >> kTagShift == hash >> kTagShift; }
  std::size_t home(std::uint64_t hash) const { return hash & (cells_.size() - 1); }
  std::size_t home_of(Cell cell) const { return home(hash_of(entry_of(cell)->key.view())); }
  std::size_t after(std::size_t cell) const { return (cell + 1) & (cells_.size() - 1); }
  Entry* find(std::string_view key, std::uint64_t hash) const;
  void place(Entry* entry);

  std::vector<Cell> cells_ = std::vector<Cell>(16);  // a power of two, at most half full
  std::size_t size_ = 0;
};

}  // namespace kvo
