// The multiple-choice knapsack, solved exactly: one item of every class, the least total cost, at
// most `capacity` total weight.
//
//   auto r = SolveKnapsack({{{9, 1}, {4, 5}}, {{9, 1}, {4, 7}}}, 13);
//   r.choice == {1, 0}, r.cost == 6, r.weight == 13
//
// Method: dominated items go; the Lagrangian bound of the linear relaxation leaves few items that
// could be in a better solution; these are combined class by class, keeping undominated states
// whose bound can still win. Integers throughout, so the bound is exact and the gap that is proven
// is 0. (Pisinger, A minimal algorithm for the multiple-choice knapsack problem, EJOR 1995.)
#pragma once

#include <cstdint>
#include <vector>

namespace lins {

struct KnapsackItem {
  int64_t weight = 0, cost = 0;  // both >= 0, sums below 2^62
};

struct KnapsackResult {
  bool feasible = false;
  std::vector<int> choice;  // by class, the index of its item
  int64_t weight = 0, cost = 0;
  int64_t states = 0;  // how many were looked at
};

// Of solutions of equal cost, one of the least weight among those that were kept: the same one on
// every machine.
KnapsackResult SolveKnapsack(const std::vector<std::vector<KnapsackItem>>& classes,
                             int64_t capacity);

}  // namespace lins
