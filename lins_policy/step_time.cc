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
  // The windows of what runs ahead (gathers) and of what trails behind (reductions, updates).
  const bool ahead = options.overlap && options.prefetch > 0;
  const double gather_window = ahead && !first ? compute.forward : 0;
  const double regather_window = ahead && !last ? compute.backward : 0;
  const double reduce_window = options.overlap && !first ? compute.backward : 0;

  const auto forward = [&](double update) {
    if (gather_window == 0 || !options.overlap_update) {
      return Exposed(s.gather, gather_window, slowdown) + update;
    }
    return Exposed(s.gather + update, gather_window, slowdown);
  };
  const auto backward = [&](double reduction) {
    if (regather_window > 0 && reduce_window > 0) {
      return Exposed(s.regather + reduction, compute.backward, slowdown);
    }
    return Exposed(s.regather, regather_window, slowdown) +
           Exposed(reduction, reduce_window, slowdown);
  };
  const double m = static_cast<double>(micro_batches);
  return (m - 1) * (forward(0) + backward(s.scatter + s.accumulate)) + forward(s.update) +
         backward(s.scatter + s.reduce);
}

}  // namespace lins
