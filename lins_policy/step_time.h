// Seconds of a training step when communication runs beside compute.
//
// One unit's collectives hide under the compute of its neighbours, which is taken to be as long as
// its own: a gather under the forward of the unit before, a second gather under the backward of the
// unit after. Both must be done in time. A gradient's reduction hides under what gathers leave of a
// backward, and, where another micro-batch follows, of the next forward. All of them share the
// links, so within one window their times add up. A window of communication c beside compute w,
// which an overlapping collective slows down by a factor f, takes
//     max(c, w + c (1 - 1/f))        so that max(c - w, c (1 - 1/f)) of it is exposed.
// The first unit's gather, the last unit's second one, and the first unit's reduction of the last
// micro-batch have nothing to hide under. simulate.h runs the same durations as events.
#pragma once

#include <cstdint>

#include "lins_policy/pricing.h"

namespace lins {

struct OverlapOptions {
  int64_t prefetch = 1;        // units gathered ahead; 0: gathers wait for their turn
  bool overlap = true;         // of anything at all
  bool overlap_update = true;  // OS -> P during the next step's forward
  friend bool operator==(const OverlapOptions&, const OverlapOptions&) = default;
};

// Of one copy, one micro-batch.
struct ComputeSeconds {
  double forward = 0, backward = 0;  // backward: recomputation included
};
// Measured seconds where the unit has them, else its flops at `flops` per second.
ComputeSeconds ComputeOf(const Unit& unit, Recompute recompute, double flops);

// What max(c, w + ...) adds to w.
double Exposed(double communication, double compute, double slowdown);

// Exposed seconds of a step, of one copy; never falls as one of its durations grows. The edge
// copies are the first unit of the model (nothing runs before its forward, nor after its backward)
// and the last (nothing before its backward).
enum class Edge { kNone, kFirst, kLast, kBoth };
double ExposedOfUnit(const Moments<double>& seconds, const ComputeSeconds& compute, Edge edge,
                     int64_t micro_batches, double slowdown, const OverlapOptions& options);

}  // namespace lins
