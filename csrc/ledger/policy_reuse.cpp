#include "ledger/policy_reuse.h"

#include <algorithm>

namespace kvo {

namespace {

constexpr std::size_t kBuckets = 2048;
constexpr double kHorizon = 8;  // capacities: the age at which keys without use begin to be lost sight of
constexpr float kKept = 0.99f;  // of the counts, each time it learns
// Before there are counts: this share of the keys of the lowest class that reach an age group is used in it, twice and
// three times as many of the others. Believed as much as so many keys.
constexpr float kPriorShare = 0.067f, kPriorKeys = 16, kLikeBefore = 0.3f;
constexpr float kOwnKeys = 1000;  // of a class that reached an age: then its own table is believed

// Where an age group begins. In floating point the second one has a width, though no age is in it.
float age_of(int group) { return static_cast<float>(2 + (group & 1)) * static_cast<float>(1ull << (group / 2)) / 2; }

}  // namespace

void ReuseModel::set_capacity(std::int64_t entries) {
  buckets_.resize(kBuckets);
  const double keys = static_cast<double>(kBuckets * std::tuple_size_v<Bucket>);
  const double share = std::min(1.0, keys / (kHorizon * static_cast<double>(std::max<std::int64_t>(1, entries))));
  marks_end_ = static_cast<std::uint32_t>(share * ~0u);
  for (Bucket& bucket : buckets_) {
    for (SampledKey& key : bucket) {
      if (key.mark >= marks_end_) key = {};  // its uses will not be seen
    }
  }
}

void ReuseModel::use(std::uint64_t hash, int key_class, std::uint32_t now) {
  const std::uint32_t mark = static_cast<std::uint32_t>(hash >> 32) & ~kClassBits;
  if (mark >= marks_end_) return;
  Bucket& bucket = buckets_[hash % kBuckets];
  auto place = std::ranges::find_if(
      bucket, [&](const SampledKey& key) { return key.exists() && (key.mark & ~kClassBits) == mark; });
  const bool seen_before = place != bucket.end();
  if (!seen_before) --place;  // the oldest is pushed out
  if (place->exists()) {
    LifeTable& table = tables_[place->mark & kClassBits];
    const int age = age_group(now - place->used_at);
    ++table.ended[age];
    if (seen_before) ++table.used[age];
  }
  std::copy_backward(bucket.begin(), place, place + 1);
  bucket.front() = {mark | static_cast<std::uint32_t>(key_class), now};
}

void ReuseModel::learn(std::uint32_t now) {
  std::array<Counts, kClasses> alive{};
  for (const Bucket& bucket : buckets_) {
    for (const SampledKey& key : bucket) {
      if (key.exists()) ++alive[key.mark & kClassBits][age_group(now - key.used_at)];
    }
  }
  for (int key_class = 0; key_class < kClasses; ++key_class) {
    weigh(key_class, used_shares(key_class, alive[key_class]));
    LifeTable& table = tables_[key_class];
    for (float& count : table.used) count *= kKept;
    for (float& count : table.ended) count *= kKept;
  }
}

// Of the keys that reach an age group, the share used in it. Keys lost sight of in it count half (the actuary's way).
ReuseModel::Shares ReuseModel::used_shares(int key_class, const Counts& alive) const {
  const LifeTable& table = tables_[key_class];
  const float prior = kPriorShare * static_cast<float>(key_class + 1);
  Shares shares;
  float share = prior, reached = 0;
  for (int age = 0; age < kAges; ++age) reached += table.ended[age] + alive[age];
  for (int age = 0; age < kAges; ++age) {
    const float ended = table.ended[age] + alive[age];
    const float at_risk = std::max(table.used[age], reached - (ended - table.used[age]) / 2);
    // Where little was seen, somewhat like the group before. Where all keys were used up to some age, none was seen
    // after it: more of that would call old keys of a working set that is gone worth more than the new ones.
    const float expected = kLikeBefore * share + (1 - kLikeBefore) * prior;
    share = (table.used[age] + kPriorKeys * expected) / (at_risk + kPriorKeys);
    shares.used[age] = share, shares.at_risk[age] = at_risk;
    reached -= ended;
  }
  return shares;
}

// From the oldest age group to the youngest: groups join to a stretch that is kept through as a whole while its later
// part has the better rate.
void ReuseModel::weigh(int key_class, const Shares& shares) {
  struct Stretch {
    float uses, time, left;  // of one key that enters it
  };
  std::array<Stretch, kAges> later;
  int count = 0;
  for (int age = kAges; age-- > 0;) {
    const float share = shares.used[age];
    Stretch stretch{share, (age_of(age + 1) - age_of(age)) * (1 - share / 2), 1 - share};
    for (; count > 0 && later[count - 1].uses * stretch.time > stretch.uses * later[count - 1].time; --count) {
      stretch.uses += stretch.left * later[count - 1].uses;
      stretch.time += stretch.left * later[count - 1].time;
      stretch.left *= later[count - 1].left;
    }
    later[count++] = stretch;
    float& worth = tables_[key_class].worth[age];
    worth = stretch.uses / stretch.time;
    // The start of a prefix was used no less often than its end, and must not go first; but a working set that is gone
    // was used no less often than the one that came.
    if (key_class > 0 && shares.at_risk[age] < kOwnKeys) worth = std::max(worth, tables_[key_class - 1].worth[age]);
  }
}

}  // namespace kvo
