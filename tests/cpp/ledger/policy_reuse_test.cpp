#include "ledger/policy_reuse.h"

#include <gtest/gtest.h>

#include <random>

namespace kvo {
namespace {

// One use in `one_in` is that of a key of class 0 that was new `gap` uses ago, as class 1; all others are of new keys.
struct Reuse : testing::Test {
  void run(std::uint32_t gap, std::uint32_t uses, std::int64_t entries, std::uint32_t one_in = 4) {
    model.set_capacity(entries);
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> hashes(uses);
    for (std::uint32_t now = 1; now < uses; ++now) {
      hashes[now] = random();
      const bool again = now > gap && now % one_in == 0 && (now - gap) % one_in != 0;
      model.use(again ? hashes[now - gap] : hashes[now], again ? 1 : 0, start + now);
      if (now % 500 == 0) model.learn(start + now);
    }
  }

  std::uint32_t start = 0;
  ReuseModel model;
};

TEST_F(Reuse, WorthRisesTowardsTheUseAndFallsBehindIt) {
  run(1001, 50000, 1000);
  EXPECT_GT(model.worth(0, 900), 1.5 * model.worth(0, 10));
  EXPECT_LT(model.worth(0, 2000), model.worth(0, 900) / 3);
  // A third of the keys is used after 1,001 uses, the rest never: no rate is better than one in about 3,000.
  EXPECT_NEAR(model.worth(0, 10), 1 / 4000.0, 1 / 8000.0);
}

TEST_F(Reuse, NoRateIsBetterThanTheUsesThatWere) {
  run(1001, 50000, 1000, 3);  // half of the keys
  EXPECT_LT(model.worth(0, 10), 1 / 2002.0);
  EXPECT_GT(model.worth(0, 10), 1 / 2800.0);
}

TEST_F(Reuse, ClassesAreToldApart) {
  model.set_capacity(1000);
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> again(200);
  for (std::uint64_t& hash : again) hash = random();
  std::uint32_t now = 0;
  for (int round = 0; round < 100; ++round) {
    for (const std::uint64_t hash : again) {
      model.use(hash, 1, ++now);
      for (int i = 0; i < 4; ++i) model.use(random(), 0, ++now);
    }
    model.learn(now);
  }
  EXPECT_GT(model.worth(1, 900), 100 * model.worth(0, 900));
}

// 8,000 keys, of which 400 are used again. Then one in 1,000 is in the sample: the others do not count any more as keys
// without uses.
TEST_F(Reuse, KeysThatLeaveTheSampleAreNotWaitedFor) {
  model.set_capacity(1000);
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> hashes(8000);
  std::uint32_t now = 0;
  for (std::uint64_t& hash : hashes) model.use(hash = random(), 0, ++now);
  for (std::size_t i = 7600; i < hashes.size(); ++i) model.use(hashes[i], 1, ++now);
  model.learn(now);
  const float before = model.worth(0, 300);
  model.set_capacity(2'000'000);
  model.learn(now);
  EXPECT_GT(model.worth(0, 300), 5 * before);
}

TEST_F(Reuse, TheClockMayWrap) {
  start = ~0u - 25000;
  run(1001, 50000, 1000);
  EXPECT_GT(model.worth(0, 900), 1.5 * model.worth(0, 10));
  EXPECT_LT(model.worth(0, 2000), model.worth(0, 900) / 3);
}

// 20,000 entries: one key in ten is in the sample. 1,000: all are.
TEST_F(Reuse, ASampleSaysTheSame) {
  run(1001, 50000, 20000);
  EXPECT_NEAR(model.worth(0, 10), 1 / 4000.0, 1 / 8000.0);
  EXPECT_LT(model.worth(0, 2000), model.worth(0, 900) / 3);
}

// More keys lie between two uses than the sample holds.
TEST_F(Reuse, UsesSeveralCapacitiesApartAreSeen) {
  run(60001, 200000, 20000);
  EXPECT_GT(model.worth(0, 50000), 1.5 * model.worth(0, 3000));
  EXPECT_LT(model.worth(0, 100000), model.worth(0, 50000) / 3);
}

TEST_F(Reuse, AHigherClassIsNeverWorthLessWhileLittleIsKnownOfIt) {
  for (std::uint32_t gap : {0u, 1001u}) {
    if (gap) run(gap, 20000, 1000, 64);  // some 300 keys that were used again
    model.learn(20000);
    for (std::uint32_t age = 1; age < 1u << 30; age *= 2) {
      EXPECT_GE(model.worth(1, age), model.worth(0, age)) << age;
      EXPECT_GE(model.worth(2, age), model.worth(1, age)) << age;
    }
  }
}

TEST_F(Reuse, AClassOfWhichMuchIsKnownIsJudgedByItself) {
  run(1001, 50000, 1000);  // the second use is the last one
  EXPECT_LT(model.worth(1, 900), model.worth(0, 900) / 10);
}

TEST_F(Reuse, KnowingNothingTheOldestIsWorthLeast) {
  model.learn(1);
  for (int key_class = 0; key_class < ReuseModel::kClasses; ++key_class) {
    for (std::uint32_t age = 2; age < 1u << 30; age *= 2) {
      EXPECT_LT(model.worth(key_class, 2 * age), model.worth(key_class, age)) << age;
    }
  }
}

}  // namespace
}  // namespace kvo
