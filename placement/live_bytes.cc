// What running a plan keeps in memory.
#include <algorithm>

#include "placement/redistribution.h"

namespace lins {
namespace {

// A gather's or scatter's pieces lie one after another in the larger tensor: flat slots, or rows of
// the only dimension that is divided, with nothing before it.
bool LiesInOrder(const Layout& whole, const Layout& pieces, int64_t rank) {
  if (pieces.IsFlatOrOwned()) return true;
  const Shape shape = whole.LocalShape(rank);
  int64_t before = 1;
  int divided = 0;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
    const auto axes_of = [d](const Layout& l) {
      for (const ShardTerm& t : l.terms().shards) {
        if (t.dim == d) return t.axes;
      }
      return Axes();
    };
    if (!(axes_of(whole) == axes_of(pieces))) {
      if (++divided > 1 || before > 1) return false;
    }
    before *= shape[d];
  }
  return true;
}

// Elements that are packed or unpacked around a step's collective, or set aside.
int64_t Staged(const Step& step, int64_t rank) {
  const int64_t in = step.before.LocalNumel(rank), out = step.after.LocalNumel(rank);
  switch (step.kind) {
    case StepKind::kSlice:
    case StepKind::kAllReduce:
    case StepKind::kBroadcast:
      return 0;
    case StepKind::kLocal:
      return OverlapElements(step.before, rank, step.after, rank);
    case StepKind::kAllGather:
      return LiesInOrder(step.after, step.before, rank) ? 0 : out;
    case StepKind::kReduceScatter:
      return LiesInOrder(step.before, step.after, rank) ? 0 : in;
    default: {
      const Mesh& mesh = step.before.mesh();
      const int64_t shard = mesh.IndexInGroup(step.before.SplitAxes(), rank);
      int64_t sent = 0;
      for (int64_t peer : mesh.Group(step.axes, rank)) {
        if (Holder(step.before, shard, peer) != rank) continue;
        sent += OverlapElements(step.before, rank, step.after, peer);
      }
      return sent + out;
    }
  }
}

}  // namespace

int64_t LiveBytes(const RedistributionPlan& plan, int64_t rank) {
  const int64_t source = plan.src.LocalNumel(rank);
  int64_t most = source, kept = 0;
  for (const Step& step : plan.steps) {
    most = std::max(most, kept + step.before.LocalNumel(rank) + step.after.LocalNumel(rank) +
                              Staged(step, rank));
    kept = source;
  }
  return most * plan.itemsize;
}

}  // namespace lins
