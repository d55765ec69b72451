// The multiple-choice knapsack, solved exactly: one item of every class, the least total cost, at
// most `capacity` total weight.
//
//   auto r = SolveKnapsack({{{9, 1}, {4, 5}}, {{9, 1}, {4, 7}}}, 13);
//   r.choice == {1, 0}, r.cost == 6, r.weight == 13
//
// Method: classes alike become one with copies, and dominated items go. The linear relaxation gives
// a price of a unit of weight; with it every solution costs the relaxation's bound, plus the extra
// of each item above its class' cheapest at that price, plus the price of the capacity left over.
// So a solution within a gap of the bound takes few items with an extra, and all of those are
// enumerated, for a gap that grows until it holds a solution: that one is optimal. Integers
// throughout: the gap that is proven is 0. (Dyer 1984 and Zemel 1984 for the relaxation; Pisinger,
// A minimal algorithm for the multiple-choice knapsack problem, EJOR 1995, for states under a
// bound.)
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace lins {

struct KnapsackItem {
  int64_t weight = 0, cost = 0;  // both >= 0, sums below 2^62
  friend auto operator<=>(const KnapsackItem&, const KnapsackItem&) = default;
};

struct KnapsackResult {
  bool feasible = false;
  std::vector<int> choice;  // by class, the index of its item
  int64_t weight = 0, cost = 0;
  int64_t states = 0;  // how many were looked at
};

// Only solutions that cost less than `below` count. The same one on every machine.
KnapsackResult SolveKnapsack(const std::vector<std::vector<KnapsackItem>>& classes,
                             int64_t capacity, int64_t below = std::numeric_limits<int64_t>::max());

}  // namespace lins
