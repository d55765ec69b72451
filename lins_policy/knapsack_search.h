// The exact part of the knapsack (knapsack.h): everything that could beat a solution at hand.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lins {

using Wide = __int128;

// Classes alike. Items are undominated: by rising weight and falling cost.
struct KnapsackKind {
  struct Item {
    int64_t weight, cost;
    int index;  // in the caller's class
  };
  std::vector<Item> items;
  int64_t copies = 1;
};

class KnapsackSearch {
 public:
  // price / per is the price of a unit of weight in the linear relaxation. The kinds outlive this.
  KnapsackSearch(const std::vector<KnapsackKind>& kinds, int64_t capacity, int64_t price,
                 int64_t per);

  // An optimal solution, as counts by kind and item, if one costs less than `cost`.
  std::optional<std::vector<std::vector<int64_t>>> CheaperThan(int64_t cost);
  int64_t states() const { return states_; }

 private:
  // Copies of a kind take another item than the kind's base, the cheapest one at the price.
  struct Move {
    size_t kind;
    int item;
    int64_t weight;  // change per copy; negative where the item is lighter
    Wide extra;      // per copy, >= 0
    bool ends_kind = false;
    int64_t least_after = 0, most_after = 0;    // change of weight by moves of kinds that follow
    int64_t least_beside = 0, most_beside = 0;  // per copy, by moves of this kind that follow
  };
  struct State {
    int64_t weight, used;  // used: copies of the kind at hand that left its base
    Wide extra;
    int parent;     // in the layer before
    int64_t count;  // copies that made the layer's move
  };
  struct Found {
    Wide gap;
    int64_t weight = 0, last_count = 0;
    int parent = -1;
  };

  std::vector<Move> MovesWithin(Wide gap) const;
  // All solutions whose extras and leftover are worth at most `gap`; the best of them.
  std::optional<Found> Enumerate(const std::vector<Move>& moves, Wide gap);
  std::vector<State> Apply(const Move& move, const std::vector<State>& from, Wide gap) const;
  void DropDominated(std::vector<State>& states) const;
  std::vector<std::vector<int64_t>> Counts(const std::vector<Move>& moves,
                                           const Found& found) const;

  const std::vector<KnapsackKind>& kinds_;
  const int64_t capacity_, price_, per_;
  std::vector<int> base_;                 // by kind
  std::vector<std::vector<Wide>> extra_;  // by kind and item
  Wide bound_ = 0;                        // of cost * per
  int64_t base_weight_ = 0;
  std::vector<std::vector<State>> layers_;
  int64_t states_ = 0;
};

}  // namespace lins
