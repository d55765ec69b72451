#include "lins_policy/step_time.h"

#include <algorithm>

namespace lins {

ComputeSeconds ComputeOf(const Unit& unit, Recompute recompute, double flops) {
  ComputeSeconds c;
  c.forward = unit.forward_seconds > 0 ? unit.forward_seconds : unit.forward_flops / flops;
  c.backward = unit.backward_seconds > 0 ? unit.backward_seconds : 2 * c.forward;
  if (recompute == Recompute::kFull) c.backward += c.forward;
  return c;
}

double Exposed(double communication, double compute, double slowdown) {
  if (compute <= 0) return communication;
  return std::max(communication - compute, communication * (1 - 1 / slowdown));
}

double ExposedOfUnit(const Moments<double>& s, const ComputeSeconds& compute, Edge edge,
                     int64_t micro_batches, double slowdown, const OverlapOptions& options) {
  const bool first = edge == Edge::kFirst || edge == Edge::kBoth;
  const bool last = edge == Edge::kLast || edge == Edge::kBoth;
  const bool ahead = options.overlap && options.prefetch > 0;
  // Compute that is slowed down by f lasts, and hides, f times as long.
  const double forward = options.overlap ? compute.forward * slowdown : 0;
  const double backward = options.overlap ? compute.backward * slowdown : 0;
  const double gather_window = ahead && !first ? forward : 0;
  const double regather_window = ahead && !last ? backward : 0;
  const double m = static_cast<double>(micro_batches);
  const double accumulate = s.scatter + s.accumulate, reduce = s.scatter + s.reduce;
  const auto above = [](double x) { return std::max(x, 0.0); };

  // What no window hides: of gathers, which must be done in time ...
  double open = (m - 1) * above(s.gather - gather_window) + m * above(s.regather - regather_window);
  if (gather_window > 0 && options.overlap_update) {
    open += above(s.gather + s.update - gather_window);
  } else {
    open += above(s.gather - gather_window) + s.update;
  }
  // ... and of reductions, which take what gathers leave of their own backward and, but for the
  // last micro-batch's, of all that follows.
  const double own = first ? 0 : backward - std::min(s.regather, regather_window);
  const double next = forward - std::min(s.gather, gather_window);
  open += above(reduce - own + (m - 1) * above(accumulate - own - next));

  const double all = m * (s.gather + s.regather) + (m - 1) * accumulate + reduce + s.update;
  return all * (1 - 1 / slowdown) + open / slowdown;
}

}  // namespace lins
