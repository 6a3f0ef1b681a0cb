#include "ledger/key_table.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>

namespace kvo {
namespace {

// Erasing moves cells: compared with std::map after every step, in a small key space so that chains are long.
TEST(KeyTable, BehavesLikeAMap) {
  std::mt19937 random(1);
  KeyTable table;
  std::map<std::string, std::unique_ptr<Entry>> model;
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i)  // every third one too long to lie in its entry
    keys.push_back("key number " + std::to_string(i) + std::string(i % 3 ? 0 : 36, 'x'));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  for (int step = 0; step < 3000; ++step) {
    const std::string& key = keys[random() % keys.size()];
    if (const auto found = model.find(key); found != model.end()) {
      table.erase(found->second.get());
      model.erase(found);
    } else {
      auto entry = std::make_unique<Entry>();
      entry->key = key;
      table.insert(entry.get());
      model[key] = std::move(entry);
    }
    ASSERT_EQ(table.size(), model.size());
    for (std::size_t start = 0; start < keys.size(); start += KeyTable::kBatch) {
      const KeyTable::Batch batch = table.find_many(std::span(views).subspan(start));
      for (std::size_t i = start; i < std::min(keys.size(), start + KeyTable::kBatch); ++i) {
        const auto found = model.find(keys[i]);
        Entry* expected = found == model.end() ? nullptr : found->second.get();
        ASSERT_EQ(batch[i - start], expected) << keys[i] << " at step " << step;
        ASSERT_EQ(table.find(keys[i]), expected);
      }
    }
  }
  std::size_t seen = 0;
  table.clear([&](Entry* entry) { seen += model.count(std::string(entry->key.view())); });
  EXPECT_EQ(seen, model.size());
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.find(keys[0]), nullptr);
}

}  // namespace
}  // namespace kvo
