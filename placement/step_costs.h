// What the steps between the states of a plan's search cost: elements received, group, seconds.
#pragma once

#include <array>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "placement/search.h"
#include "placement/space.h"

namespace lins {

enum class EdgeKind : uint8_t { kNone, kMove, kScatter, kReduce, kBegin };

// A step of the search. A move turns a complete split into another, under the same pending
// reductions; a scatter reduces over `axes` and splits over them; a reduce leaves the split; a
// begin lets reductions over `axes` wait that were none.
struct Edge {
  EdgeKind kind = EdgeKind::kNone;
  AxisMask axes = 0;
};

class StepCosts {
 public:
  StepCosts(PlanSpace& space, const SearchOptions& options);

  struct Move {
    AxisMask axes = 0;   // over which ranks talk; none when nothing is received
    int64_t worst = -1;  // elements that the worst rank receives
    int64_t group = 0;   // ranks that talk
    double seconds = 0;
  };
  // `from` and `to` differ. Remembered while the splits are few; valid until the next call.
  const Move& MoveCost(int from, int to);

  // What each rank receives in a step; false where a move brings nothing to any.
  bool Receive(const Edge& edge, int from, int to, int64_t* out);
  // And the worst of them.
  int64_t Worst(const Edge& edge, int from, int to);
  // By the cost model; 0 where nothing is received.
  double Seconds(const Edge& edge, int from, int to, int64_t worst);
  // The worst rank's input and output together, in bytes.
  int64_t Peak(int from, int to);
  std::pair<StepKind, Axes> KindAndAxes(const Edge& edge, int from, int to);

 private:
  static constexpr size_t kRemembered = 1000;  // splits
  Move& Slot(int from, int to);
  StepKind MoveKind(int from, int to);
  double ModelSeconds(StepKind kind, int64_t elements, std::pair<int64_t, int64_t> group);
  const std::vector<int64_t>& IndexIn(AxisMask axes);

  PlanSpace& s_;
  const SearchOptions& options_;
  const int64_t n_;
  std::vector<int64_t> scratch_;
  std::vector<std::vector<Move>> moves_;  // [from][to], worst < 0: not known yet
  Move other_;
  absl::flat_hash_map<AxisMask, std::vector<int64_t>> index_;
  // The cost model's latest answers, each at a place that its question decides.
  struct Answer {
    StepKind kind = StepKind::kLocal;
    int64_t bytes = -1, gpus = 0, nodes = 0;  // no question has -1 bytes
    double seconds = 0;
  };
  static constexpr int kAnswerBits = 6;
  std::array<Answer, 1 << kAnswerBits> answers_;
};

// A step on the way from space.src(), and where it ends.
struct Hop {
  Edge edge;
  int split;
  PlanSpace::Pending pending;
};
// The plan's steps, with their volumes.
SearchResult ToSteps(PlanSpace& space, StepCosts& costs, const SearchOptions& options,
                     const std::vector<Hop>& hops);

}  // namespace lins
