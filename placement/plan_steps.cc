// A chain that the search has found, as the steps of a plan.
#include <algorithm>

#include "placement/step_costs.h"

namespace lins {
namespace {

// Adds up what each rank receives; where that is the same on all ranks without a vector.
class Received {
 public:
  explicit Received(PlanSpace& space) : space_(space) {}

  void Add(StepCosts& costs, const Edge& edge, int from, int to, int64_t worst) {
    if (worst == 0) return;
    const bool equal =
        space_.even_line() && (edge.kind != EdgeKind::kMove || space_.EvenOverlap(from, to) >= 0);
    if (equal) {
      all_ += worst;
      return;
    }
    step_.resize(space_.ranks());
    each_.resize(space_.ranks(), 0);
    costs.Receive(edge, from, to, step_.data());
    for (size_t r = 0; r < each_.size(); ++r) each_[r] += step_[r];
  }

  int64_t Worst() const {
    return all_ + (each_.empty() ? 0 : *std::max_element(each_.begin(), each_.end()));
  }

 private:
  PlanSpace& space_;
  int64_t all_ = 0;
  std::vector<int64_t> each_, step_;
};

}  // namespace

SearchResult ToSteps(PlanSpace& space, StepCosts& costs, const SearchOptions& options,
                     const std::vector<Hop>& hops) {
  SearchResult out;
  out.found = true;
  out.steps.reserve(hops.size());
  Received received(space);
  int from = space.src();
  Layout before = space.ToLayout(from, space.src_pending());
  for (const Hop& hop : hops) {
    const int64_t worst = costs.Worst(hop.edge, from, hop.split);
    auto [kind, axes] = costs.KindAndAxes(hop.edge, from, hop.split);
    // A split may also come or go along axes of one rank: the step is that of the others.
    if (Mesh::GroupSize(axes) > 1) axes = WithoutSingles(axes);
    Layout after = space.ToLayout(hop.split, hop.pending);
    Step step{kind, std::move(axes), std::move(before), after};
    const int64_t in = space.split(from).most, to = space.split(hop.split).most;
    step.bytes = StepVolume(kind, in, to) * options.itemsize;
    step.in_bytes = in * options.itemsize;
    step.out_bytes = to * options.itemsize;
    step.recv_bytes = worst * options.itemsize;
    step.peak_bytes = costs.Peak(from, hop.split);
    if (options.cost_model) step.seconds = costs.Seconds(hop.edge, from, hop.split, worst);
    received.Add(costs, hop.edge, from, hop.split, worst);
    out.steps.push_back(std::move(step));
    before = std::move(after);
    from = hop.split;
  }
  out.received = received.Worst();
  return out;
}

}  // namespace lins
