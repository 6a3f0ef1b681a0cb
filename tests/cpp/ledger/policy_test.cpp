// What holds for every policy: owners may do anything in any order, and no pinned or erased node is ever the victim.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ledger/eviction_policy.h"
#include "ledger/policy_replay.h"

namespace kvo {
namespace {

std::uint64_t hash_of(std::uint64_t key) {
  key = (key + 1) * 0x9e3779b97f4a7c15;
  return (key ^ (key >> 29)) * 0xbf58476d1ce4e5b9;
}

using Keys = std::vector<std::uint64_t>;

struct Keyed : PolicyNode {
  std::uint64_t hash = 0;
};

struct EveryPolicy : testing::TestWithParam<const char*> {
  EveryPolicy() : policy(make_policy(GetParam())) {}

  void admit(Keyed& node, std::uint64_t key) {
    node.hash = hash_of(key);
    policy->admit(node, node.hash);
  }
  Keyed* victim() { return static_cast<Keyed*>(policy->victim()); }

  std::unique_ptr<EvictionPolicy> policy;
};

INSTANTIATE_TEST_SUITE_P(, EveryPolicy, testing::Values("lru", "s3fifo", "arc", "adaptive"),
                         [](const auto& given) { return std::string(given.param); });

TEST_P(EveryPolicy, VictimsAreReadyAndNotPinnedAndNoneIsLost) {
  std::mt19937 random(1);
  constexpr int kNodes = 200;
  std::vector<Keyed> nodes(kNodes);
  std::set<int> absent, free, pinned;
  for (int i = 0; i < kNodes; ++i) absent.insert(i);
  policy->set_capacity(kNodes);
  const auto pick = [&](const std::set<int>& from) { return *std::next(from.begin(), random() % from.size()); };
  for (int step = 0; step < 20000; ++step) {
    const auto what = random() % 8;
    if (what == 0 && !absent.empty()) {
      const int i = pick(absent);
      admit(nodes[i], random() % 1000);
      absent.erase(i), free.insert(i);
    } else if (what <= 2 && !free.empty()) {
      const int i = pick(free);
      what == 1 ? policy->looked_up(nodes[i], nodes[i].hash) : policy->stored_again(nodes[i], nodes[i].hash);
    } else if (what == 3 && !free.empty()) {
      const int i = pick(free);
      policy->pin(nodes[i]);
      free.erase(i), pinned.insert(i);
    } else if (what == 4 && !pinned.empty()) {
      const int i = pick(pinned);
      policy->stored_again(nodes[i], nodes[i].hash);
      policy->unpin(nodes[i]);
      pinned.erase(i), free.insert(i);
    } else if (what == 5 && step % 16 == 0) {
      policy->set_capacity(1 + static_cast<std::int64_t>(random() % (2 * kNodes)));
    } else if (what == 6 && !pinned.empty()) {
      const int i = pick(pinned);
      policy->erase(nodes[i], nodes[i].hash, false);
      pinned.erase(i), absent.insert(i);
    } else if (what == 7) {
      Keyed* gone = victim();
      ASSERT_EQ(gone == nullptr, free.empty());
      if (!gone) continue;
      const int i = static_cast<int>(gone - nodes.data());
      ASSERT_TRUE(free.contains(i)) << "at step " << step;
      policy->erase(*gone, gone->hash, true);
      free.erase(i), absent.insert(i);
    }
  }
  for (; !free.empty(); free.erase(static_cast<int>(victim() - nodes.data())), policy->erase(*victim(), 1, true)) {
    ASSERT_NE(victim(), nullptr);
    ASSERT_TRUE(free.contains(static_cast<int>(victim() - nodes.data())));
  }
  EXPECT_EQ(victim(), nullptr);
}

TEST_P(EveryPolicy, TheEndOfAPrefixGoesFirst) {
  constexpr int kKeys = 20;
  std::vector<Keyed> nodes(kKeys);
  policy->set_capacity(kKeys);
  for (int i = kKeys; i-- > 0;) admit(nodes[i], i);
  for (int i = kKeys; i-- > 0;) policy->looked_up(nodes[i], nodes[i].hash);
  for (int i = kKeys; i-- > 0;) {
    EXPECT_EQ(victim() - nodes.data(), i);
    policy->erase(*victim(), hash_of(i), true);
  }
}

TEST_P(EveryPolicy, AKeyUsedAgainAndAgainOutlivesKeysUsedOnce) {
  PolicyReplay cache(std::move(policy), 50);
  cache.request(Keys{0, 1});
  for (std::uint64_t key = 10; key < 2000; key += 10) {
    EXPECT_EQ(cache.request(Keys{0, 1}), 2) << key;
    cache.request(Keys{key, key + 1, key + 2, key + 3});
    EXPECT_LE(cache.size(), 50);
  }
  EXPECT_EQ(cache.size(), 50);
}

TEST_P(EveryPolicy, TheSameRequestsGiveTheSameCache) {
  PolicyReplay one(make_policy(GetParam()), 300), other(make_policy(GetParam()), 300);
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t first = random() % 100 * (random() % 100);
    const Keys keys{first, first + 100000, first + 200000};
    ASSERT_EQ(one.request(keys), other.request(keys));
  }
  for (std::uint64_t key = 0; key < 10000; ++key) ASSERT_EQ(one.contains(key), other.contains(key));
}

TEST_P(EveryPolicy, ARequestLargerThanTheCacheKeepsItsStart) {
  PolicyReplay cache(std::move(policy), 3);
  EXPECT_EQ(cache.request(Keys{1, 2, 3, 4, 5}), 0);
  EXPECT_EQ(cache.request(Keys{1, 2, 3, 4, 5}), 3);
  EXPECT_EQ(cache.size(), 3);
}

TEST_P(EveryPolicy, WhatARequestStoresGoesFromItsEnd) {
  PolicyReplay cache(std::move(policy), 4);
  cache.request(Keys{1, 2, 3, 4});
  cache.request(Keys{9});
  EXPECT_EQ(cache.request(Keys{1, 2, 3}), 3);
}

TEST_P(EveryPolicy, AKeyMayBeTwiceInARequest) {
  PolicyReplay cache(std::move(policy), 3);
  for (int i = 0; i < 3; ++i) cache.request(Keys{1, 2, 3, 1, 1});
  cache.request(Keys{6, 7, 8, 8});
  EXPECT_TRUE(cache.contains(6) && cache.contains(7) && cache.contains(8));
  EXPECT_EQ(cache.size(), 3);
}

TEST(MakePolicy, KnowsNoOtherNames) { EXPECT_EQ(make_policy("belady"), nullptr); }

// A use is counted once from the lookup until the key is stored again.
TEST(S3Fifo, CountsALookupAndTheStoreAfterItAsOneUse) {
  const auto policy = make_policy("s3fifo");
  policy->set_capacity(10);
  Keyed node;
  policy->admit(node, 1);
  const auto looked_up = [&] { return policy->looked_up(node, 1), node.uses; };
  const auto stored_again = [&] { return policy->stored_again(node, 1), node.uses; };
  EXPECT_EQ(looked_up(), 1);
  EXPECT_EQ(looked_up(), 1);
  EXPECT_EQ(stored_again(), 1);
  EXPECT_EQ(stored_again(), 2);
  EXPECT_EQ(looked_up(), 3);
}

void store_once(PolicyReplay& cache, std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t key = first; key < end; ++key) cache.request(Keys{key});
}

TEST(S3Fifo, KeepsWhatWasUsedOrCameBackSoon) {
  PolicyReplay cache(make_policy("s3fifo"), 20);
  cache.request(Keys{1});
  cache.request(Keys{1});
  cache.request(Keys{2});
  store_once(cache, 100, 130);
  EXPECT_TRUE(cache.contains(1));
  EXPECT_FALSE(cache.contains(2));
  cache.request(Keys{2});
  store_once(cache, 130, 200);
  EXPECT_TRUE(cache.contains(2));
}

TEST(Arc, MakesRoomForNewKeysWhenTheyCameBackTooLate) {
  PolicyReplay cache(make_policy("arc"), 10);
  for (int i = 0; i < 2; ++i) store_once(cache, 0, 10);
  store_once(cache, 100, 105);
  EXPECT_FALSE(cache.contains(103));
  for (int i = 0; i < 3; ++i) store_once(cache, 100, 108);
  store_once(cache, 200, 205);
  EXPECT_TRUE(cache.contains(200));
}

// 300 keys that come back after 1,500 uses, in a cache of 1,000 keys, beside keys that never do: recency keeps none
// of them.
std::int64_t hits_when_memory_is_short(const char* name) {
  PolicyReplay cache(make_policy(name), 1000);
  std::uint64_t never_again = 1 << 20;
  std::int64_t hits = 0;
  for (int round = 0; round < 200; ++round) {
    for (std::uint64_t key = 0; key < 300; ++key) {
      hits += cache.request(Keys{key});
      for (int i = 0; i < 4; ++i) cache.request(Keys{never_again++});
    }
  }
  return hits;
}

TEST(Adaptive, KeepsWhatComesBackWhereRecencyKeepsNothing) {
  EXPECT_EQ(hits_when_memory_is_short("lru"), 0);
  EXPECT_GT(hits_when_memory_is_short("adaptive"), 60000 * 9 / 10);
}

// Each key is used twice, the second time 800 keys after the first; then never.
std::int64_t hits_when_recency_decides(const char* name) {
  PolicyReplay cache(make_policy(name), 2000);
  std::int64_t hits = 0;
  for (std::uint64_t key = 800; key < 50000; ++key) {
    cache.request(Keys{key});
    hits += cache.request(Keys{key - 800});
  }
  return hits;
}

TEST(Adaptive, IsNearLruWhereRecencyDecides) {
  const std::int64_t lru = hits_when_recency_decides("lru");
  EXPECT_GT(lru, 48000);
  EXPECT_GT(hits_when_recency_decides("adaptive"), lru * 99 / 100);
}

// Some prompts of 32 keys, all of them asked for `passes` times in turn: the share of keys that were there, last time.
double last_pass(PolicyReplay& cache, std::uint64_t first_key, std::int64_t prompts, int passes) {
  std::int64_t hits = 0;
  for (int pass = 0; pass < passes; ++pass) {
    hits = 0;
    for (std::int64_t prompt = 0; prompt < prompts; ++prompt) {
      Keys keys(32);
      std::iota(keys.begin(), keys.end(), first_key + 32 * prompt);
      hits += cache.request(keys);
    }
  }
  return static_cast<double>(hits) / static_cast<double>(32 * prompts);
}

TEST(Adaptive, AWorkingSetThatIsGoneMakesWayForTheNextOne) {
  PolicyReplay cache(make_policy("adaptive"), 8000);
  for (std::uint64_t set = 0; set < 4; ++set) {
    EXPECT_GE(last_pass(cache, set << 32, 200, 2), 0.95) << "set " << set << ", the first time it comes back";
    EXPECT_EQ(last_pass(cache, set << 32, 200, 3), 1);
  }
}

TEST(Adaptive, PromptsThatWereUsedTwiceAndNeverAgainMakeWayToo) {
  PolicyReplay cache(make_policy("adaptive"), 8176);
  std::uint64_t next = 1;
  for (const std::int64_t prompts : {1, 4, 16, 64, 128})
    for (int i = 0; i < 3; ++i, next += 1 << 20) EXPECT_EQ(last_pass(cache, next, prompts, 2), 1) << prompts;
  EXPECT_GE(last_pass(cache, next, 200, 2), 0.95);
}

TEST(Adaptive, RemembersInNoMoreThan24BytesAKey) {
  const auto policy = make_policy("adaptive");
  policy->set_capacity(2'000'000);
  EXPECT_LE(policy->bytes(), 24u * 2'000'000);
}

}  // namespace
}  // namespace kvo
