// The knapsack: as good as trying everything, on instances that are made to be awkward.
#include "lins_policy/knapsack.h"

#include <gtest/gtest.h>

#include <chrono>

#include "problems.h"

namespace lins {
namespace {

using Classes = std::vector<std::vector<KnapsackItem>>;

// The least cost by trying every choice; -1: nothing fits.
int64_t LeastCost(const Classes& classes, size_t from, int64_t room) {
  if (room < 0) return -1;
  if (from == classes.size()) return 0;
  int64_t least = -1;
  for (const KnapsackItem& x : classes[from]) {
    const int64_t rest = LeastCost(classes, from + 1, room - x.weight);
    if (rest >= 0 && (least < 0 || rest + x.cost < least)) least = rest + x.cost;
  }
  return least;
}

// Whether a result is a choice that fits, of the weight and cost that it says.
void ExpectConsistent(const Classes& classes, int64_t capacity, const KnapsackResult& r) {
  ASSERT_EQ(r.choice.size(), classes.size());
  int64_t weight = 0, cost = 0;
  for (size_t k = 0; k < classes.size(); ++k) {
    weight += classes[k].at(r.choice[k]).weight;
    cost += classes[k].at(r.choice[k]).cost;
  }
  EXPECT_EQ(r.weight, weight);
  EXPECT_EQ(r.cost, cost);
  EXPECT_LE(weight, capacity);
}

TEST(KnapsackTest, TheExampleOfTheHeader) {
  const KnapsackResult r = SolveKnapsack({{{9, 1}, {4, 5}}, {{9, 1}, {4, 7}}}, 13);
  EXPECT_TRUE(r.feasible);
  EXPECT_EQ(r.choice, (std::vector<int>{1, 0}));
  EXPECT_EQ(r.cost, 6);
  EXPECT_EQ(r.weight, 13);
}

TEST(KnapsackTest, EdgesOfTheProblem) {
  EXPECT_TRUE(SolveKnapsack({}, 0).feasible);
  EXPECT_FALSE(SolveKnapsack({}, -1).feasible);
  EXPECT_FALSE(SolveKnapsack({{}}, 10).feasible);  // a class without items
  EXPECT_FALSE(SolveKnapsack({{{1, 1}}}, 0).feasible);
  const KnapsackResult zero = SolveKnapsack({{{0, 5}, {0, 3}, {0, 3}}, {{0, 0}}}, 0);
  EXPECT_TRUE(zero.feasible);
  EXPECT_EQ(zero.cost, 3);
  EXPECT_EQ(zero.choice, (std::vector<int>{1, 0}));  // of equals the first
}

TEST(KnapsackTest, SumsCloseTo64BitsAreExact) {
  const int64_t big = int64_t{1} << 60;
  const Classes classes = {{{big, 0}, {big - 1, 1}, {0, big}}, {{big, 0}, {big - 2, 2}, {0, big}}};
  EXPECT_EQ(SolveKnapsack(classes, 2 * big).cost, 0);
  EXPECT_EQ(SolveKnapsack(classes, 2 * big - 1).cost, 1);
  EXPECT_EQ(SolveKnapsack(classes, 2 * big - 2).cost, 2);
  EXPECT_EQ(SolveKnapsack(classes, 2 * big - 3).cost, 3);
  EXPECT_EQ(SolveKnapsack(classes, 2 * big - 4).cost, big);
}

TEST(KnapsackTest, EqualsBruteForce) {
  Random random(1);
  int feasible = 0, infeasible = 0, searched = 0;
  for (int instance = 0; instance < 3000; ++instance) {
    Classes classes(random.Int(1, 6));
    const int64_t most_weight = random.OneOf<int64_t>({1, 3, 20, 1000});
    const int64_t most_cost = random.OneOf<int64_t>({0, 2, 30, 1000});
    const bool correlated = random.Coin();  // heavier items are cheaper, a little noise apart
    for (size_t k = 0; k < classes.size(); ++k) {
      if (k > 0 && random.Int(0, 2) == 0) {
        classes[k] = classes[k - 1];  // alike
        continue;
      }
      classes[k].resize(random.Int(1, 5));
      for (KnapsackItem& x : classes[k]) {
        x.weight = random.Int(0, most_weight);
        x.cost =
            correlated ? 2 * (most_weight - x.weight) + random.Int(0, 3) : random.Int(0, most_cost);
      }
    }
    int64_t heaviest = 0;
    for (const auto& items : classes) {
      heaviest += std::max_element(items.begin(), items.end(), [](const auto& a, const auto& b) {
                    return a.weight < b.weight;
                  })->weight;
    }
    const int64_t capacity = random.Int(0, 4) == 0 ? 0 : random.Int(0, heaviest);
    const int64_t least = LeastCost(classes, 0, capacity);
    const KnapsackResult r = SolveKnapsack(classes, capacity);
    ASSERT_EQ(r.feasible, least >= 0) << instance;
    (r.feasible ? feasible : infeasible)++;
    if (!r.feasible) continue;
    searched += r.states > 0;
    ASSERT_EQ(r.cost, least) << instance;
    ExpectConsistent(classes, capacity, r);
    // Only what is cheaper than a bound.
    EXPECT_FALSE(SolveKnapsack(classes, capacity, least).feasible);
    const KnapsackResult below = SolveKnapsack(classes, capacity, least + 1);
    EXPECT_TRUE(below.feasible);
    EXPECT_EQ(below.cost, least);
  }
  EXPECT_GT(feasible, 1000);
  EXPECT_GT(infeasible, 200);
  EXPECT_GT(searched, 300);  // not only instances that the relaxation solves
}

// By dynamic programming over all weights: for instances too large to try everything.
int64_t LeastCostByWeights(const Classes& classes, int64_t capacity) {
  constexpr int64_t kNone = int64_t{1} << 60;
  std::vector<int64_t> least(capacity + 1, 0);
  for (const auto& items : classes) {
    std::vector<int64_t> next(capacity + 1, kNone);
    for (int64_t w = 0; w <= capacity; ++w) {
      for (const KnapsackItem& x : items) {
        if (x.weight <= w) next[w] = std::min(next[w], least[w - x.weight] + x.cost);
      }
    }
    least = std::move(next);
  }
  return least[capacity] >= kNone ? -1 : least[capacity];
}

TEST(KnapsackTest, EqualsDynamicProgrammingOnCopies) {
  Random random(2);
  for (int instance = 0; instance < 600; ++instance) {
    Classes classes;
    const int64_t kinds = random.Int(1, 5), most = random.OneOf<int64_t>({7, 40});
    for (int64_t k = 0; k < kinds; ++k) {
      std::vector<KnapsackItem> items(random.Int(2, 8));
      for (KnapsackItem& x : items) {
        x.weight = random.Int(0, most);
        x.cost = random.Int(0, 20) + 10 * (most - x.weight) * random.Int(1, 2);
      }
      classes.insert(classes.end(), random.Int(1, 12), items);
    }
    const int64_t capacity = random.Int(0, most * static_cast<int64_t>(classes.size()));
    const KnapsackResult r = SolveKnapsack(classes, capacity);
    const int64_t least = LeastCostByWeights(classes, capacity);
    ASSERT_EQ(r.feasible ? r.cost : -1, least) << instance;
    if (r.feasible) ExpectConsistent(classes, capacity, r);
  }
}

// 80 layers x 7 linears with grouped queries: 560 classes of 120 choices, from the least memory to
// all of it.
TEST(KnapsackTest, EveryLinearOfEightyLayersUnderManyCaps) {
  const int64_t h = 8192, kv = 1024, ffn = 28672;
  const auto time = [](double bytes, int64_t ranks) {
    return ranks == 1 ? 0
                      : 5e-6 * static_cast<double>(ranks) + bytes * static_cast<double>(ranks - 1) /
                                                                static_cast<double>(ranks) /
                                                                (ranks > 8 ? 20e9 : 150e9);
  };
  Classes layer;
  for (const int64_t n : {h * h, h * kv, h * kv, h * h, h * ffn, h * ffn, h * ffn}) {
    layer.emplace_back();
    for (int64_t p = 1; p <= 128; p *= 2) {
      for (int64_t g = p; g <= 128; g *= 2) {
        for (int64_t o = g; o <= 128; o *= 2) {
          const double bytes = 2.0 * static_cast<double>(n);
          const double seconds = 16 * time(bytes, p) + 7 * time(bytes, g) + time(bytes, o) +
                                 time(bytes / static_cast<double>(p), o / p) +
                                 time(bytes / static_cast<double>(g), 128 / g);
          layer.back().push_back(
              {n / p * 2 + n / g * 2 + n / o * 12, std::llround(seconds * 1e12)});
        }
      }
    }
    EXPECT_EQ(layer.back().size(), 120u);
  }
  Classes classes;
  for (int i = 0; i < 80; ++i) classes.insert(classes.end(), layer.begin(), layer.end());
  int64_t least = 0, most = 0;
  for (const auto& items : classes) {
    const auto [low, high] = std::minmax_element(items.begin(), items.end());
    least += low->weight;
    most += high->weight;
  }
  int64_t before = std::numeric_limits<int64_t>::max();
  double slowest = 0;
  for (const double part : {0.0, 1e-4, 1e-3, 0.02, 0.05, 0.1, 0.15, 0.2, 0.4, 0.7, 0.99, 1.0}) {
    const int64_t capacity = least + static_cast<int64_t>(part * static_cast<double>(most - least));
    const auto start = std::chrono::steady_clock::now();
    const KnapsackResult r = SolveKnapsack(classes, capacity);
    slowest = std::max(
        slowest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    ASSERT_TRUE(r.feasible);
    ExpectConsistent(classes, capacity, r);
    EXPECT_LE(r.cost, before);
    before = r.cost;
    // Nothing is cheaper: one more question with a bound of the answer is answered by no.
    EXPECT_FALSE(SolveKnapsack(classes, capacity, r.cost).feasible);
  }
  RecordProperty("slowest", absl::StrCat(slowest));
  EXPECT_FALSE(SolveKnapsack(classes, least - 1).feasible);
}

}  // namespace
}  // namespace lins
