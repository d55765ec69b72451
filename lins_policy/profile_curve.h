// One measured curve (an operation on a mesh) made into a function of bytes.
//
//   raw points -> without spikes -> never falling -> runs of points on one latency-bandwidth line
//   -> straight pieces between knots, each marked measured or extrapolated
//
// docs/profile.md has the rules and their constants.
#pragma once

#include <cstdint>
#include <vector>

#include "lins_policy/profile.h"

namespace lins {

// What an answer rests on.
enum class PointSource : uint8_t { kMeasured, kBelow, kAbove, kBetweenRegimes };

// seconds(bytes), never falling: straight between knots, and beyond the last by its slope.
class TimeCurve {
 public:
  struct Knot {
    double bytes, seconds;
    double slope;       // from here to the next knot
    PointSource at;     // at these very bytes
    PointSource after;  // from here to the next knot
  };

  TimeCurve() = default;
  explicit TimeCurve(std::vector<Knot> knots) : knots_(std::move(knots)) {}

  double Seconds(double bytes, PointSource* source = nullptr) const;
  const std::vector<Knot>& knots() const { return knots_; }

 private:
  std::vector<Knot> knots_;  // by bytes, the first at 0
};

// alpha + beta * bytes with the least sum of squared relative errors, alpha and beta not negative.
struct LatencyBandwidth {
  double alpha = 0, beta = 0;
  double At(double bytes) const { return alpha + beta * bytes; }
};
struct BytesSeconds {
  double bytes, seconds;
};
LatencyBandwidth FitLine(const std::vector<BytesSeconds>& points, size_t begin, size_t end);

struct FittedCurve {
  TimeCurve time;
  std::vector<size_t> spikes;  // indices of points not used
  struct Change {
    double below, above;  // bytes of the last point of one regime, and of the first of the next
  };
  std::vector<Change> changes;
};
// Points by ascending bytes, each once, with positive seconds; at least one.
FittedCurve FitCurve(const std::vector<ProfilePoint>& points);

// a + weight * (b - a), at the sizes of either curve's knots and straight between them, and made
// never to fall. Above 1 the weight continues from a beyond b, and the result is at least b.
TimeCurve Blend(const TimeCurve& a, const TimeCurve& b, double weight);

}  // namespace lins
