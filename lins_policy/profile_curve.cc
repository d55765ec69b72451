#include "lins_policy/profile_curve.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lins {
namespace {

// A point is a spike when it takes more than this many times what its neighbours allow; next to a
// spike, where the neighbours are farther away, more than that many times.
constexpr double kSpike = 3, kSpikeNextToSpike = 5;
// The first point of a curve: more than this many times what either of the next two takes.
constexpr double kSpikeAtStart = 2;
// The last: besides, more than this many times what its size relative to its neighbour's explains.
constexpr double kSpikeAtEnd = 1.5;
// Points of one regime lie within this of their line.
constexpr double kRegimeTolerance = 0.2;

double Chord(const BytesSeconds& a, const BytesSeconds& b, double bytes) {
  return a.seconds + (b.seconds - a.seconds) * (bytes - a.bytes) / (b.bytes - a.bytes);
}

struct Candidate : BytesSeconds {
  size_t index;  // among the points of the file
  bool next_to_spike = false;
};

// How far point i exceeds the limit that its neighbours set, as a ratio; above 1: a spike.
double Excess(const std::vector<Candidate>& p, size_t i) {
  const size_t n = p.size();
  const double t = p[i].seconds;
  if (i == 0) return t / (kSpikeAtStart * std::min(p[1].seconds, p[2].seconds));
  const double limit = p[i].next_to_spike ? kSpikeNextToSpike : kSpike;
  if (i + 1 < n) return t / (limit * Chord(p[i - 1], p[i + 1], p[i].bytes));
  const BytesSeconds &a = p[n - 3], &b = p[n - 2];
  const double line = std::max(b.seconds, Chord(a, b, p[i].bytes));
  const double proportional = b.seconds * p[i].bytes / b.bytes;
  return std::min(t / (limit * line), t / (kSpikeAtEnd * proportional));
}

// Takes spikes out of p, the worst first, and returns their indices.
std::vector<size_t> RemoveSpikes(std::vector<Candidate>* p) {
  std::vector<size_t> spikes;
  while (p->size() >= 3) {
    size_t worst = 0;
    double most = 0;
    for (size_t i = 0; i < p->size(); ++i) {
      if (const double e = Excess(*p, i); e > most) most = e, worst = i;
    }
    if (most <= 1) break;
    spikes.push_back((*p)[worst].index);
    if (worst > 0) (*p)[worst - 1].next_to_spike = true;
    if (worst + 1 < p->size()) (*p)[worst + 1].next_to_spike = true;
    p->erase(p->begin() + worst);
  }
  std::sort(spikes.begin(), spikes.end());
  return spikes;
}

// The nearest times that never fall: neighbours that do are given their mean.
void MakeMonotone(std::vector<BytesSeconds>* p) {
  struct Pool {
    double sum;
    size_t count;
    double mean() const { return sum / count; }
  };
  std::vector<Pool> pools;
  for (const BytesSeconds& x : *p) {
    pools.push_back({x.seconds, 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().sum += last.sum;
      pools.back().count += last.count;
    }
  }
  size_t i = 0;
  for (const Pool& pool : pools) {
    for (size_t k = 0; k < pool.count; ++k) (*p)[i++].seconds = pool.mean();
  }
}

struct Regime {
  size_t begin, end;  // points of it
  LatencyBandwidth line;
};

// The fewest runs of two or more points that each follow one line within the tolerance; of those,
// the best fitting. Where two points do not (no line with alpha >= 0 rises so fast), they are
// taken all the same.
std::vector<Regime> SplitRegimes(const std::vector<BytesSeconds>& p) {
  const size_t n = p.size();
  if (n < 4) return {{0, n, FitLine(p, 0, n)}};
  using Cost = std::array<double, 3>;  // runs that do not fit, runs, squared relative errors
  std::vector<Cost> best(n + 1, Cost{HUGE_VAL, HUGE_VAL, HUGE_VAL});
  std::vector<size_t> from(n + 1, 0);
  best[0] = {0, 0, 0};
  for (size_t end = 2; end <= n; ++end) {
    for (size_t begin = 0; begin + 2 <= end; ++begin) {
      if (best[begin][0] == HUGE_VAL) continue;
      const LatencyBandwidth line = FitLine(p, begin, end);
      double squares = 0, largest = 0;
      for (size_t i = begin; i < end; ++i) {
        const double e = line.At(p[i].bytes) / p[i].seconds - 1;
        squares += e * e;
        largest = std::max(largest, std::abs(e));
      }
      const bool fits = largest <= kRegimeTolerance;
      if (!fits && end - begin > 3) continue;
      const Cost cost = {best[begin][0] + !fits, best[begin][1] + 1, best[begin][2] + squares};
      if (cost < best[end]) best[end] = cost, from[end] = begin;
    }
  }
  std::vector<Regime> out;
  for (size_t end = n; end > 0; end = from[end]) {
    out.insert(out.begin(), {from[end], end, FitLine(p, from[end], end)});
  }
  return out;
}

// The line's slope, scaled so that the line passes through the point.
double SlopeThrough(const LatencyBandwidth& line, const BytesSeconds& point) {
  return line.beta * point.seconds / line.At(point.bytes);
}

class Knots {
 public:
  void Add(double bytes, double seconds, PointSource at, PointSource after) {
    if (!knots_.empty()) {
      TimeCurve::Knot& last = knots_.back();
      last.slope = (seconds - last.seconds) / (bytes - last.bytes);
    }
    knots_.push_back({bytes, seconds, 0, at, after});
  }
  TimeCurve Finish(double tail_slope) {
    knots_.back().slope = tail_slope;
    return TimeCurve(std::move(knots_));
  }

 private:
  std::vector<TimeCurve::Knot> knots_;
};

// From point a, the last of one regime, to c, the first of the next. Each side's line until they
// meet; c's line at once when it lies above a's all the way (a jump, taken as early as it can be);
// straight from a to c when it lies below.
void AddBridge(const BytesSeconds& a, const BytesSeconds& c, double slope_a, double slope_c,
               Knots* knots) {
  constexpr auto kBetween = PointSource::kBetweenRegimes;
  const double gap = c.bytes - a.bytes;
  const double at_a = c.seconds - slope_c * gap;  // c's line, at a
  const double at_c = a.seconds + slope_a * gap;  // a's line, at c
  const auto add = [&](double bytes, double seconds) {
    if (bytes <= a.bytes || bytes >= c.bytes) return;
    knots->Add(bytes, std::clamp(seconds, a.seconds, c.seconds), kBetween, kBetween);
  };
  if ((at_a < a.seconds && at_c < c.seconds) || (at_a > a.seconds && at_c > c.seconds)) {
    // They cross: a + x * slope_a = at_a + x * slope_c.
    const double x = (a.seconds - at_a) / (slope_c - slope_a);
    add(a.bytes + x, a.seconds + slope_a * x);
  } else if (at_a > a.seconds) {  // a jump: the next regime begins at once
    add(a.bytes + 1, at_a + slope_c);
  }
}

}  // namespace

double TimeCurve::Seconds(double bytes, PointSource* source) const {
  const auto next = std::upper_bound(knots_.begin() + 1, knots_.end(), bytes,
                                     [](double b, const Knot& k) { return b < k.bytes; });
  const Knot& k = *(next - 1);
  if (source) *source = bytes == k.bytes ? k.at : k.after;
  const double t = k.seconds + k.slope * (bytes - k.bytes);
  return next == knots_.end() ? t : std::min(t, next->seconds);  // not above it by rounding
}

LatencyBandwidth FitLine(const std::vector<BytesSeconds>& points, size_t begin, size_t end) {
  double w = 0, wb = 0, wbb = 0, wt = 0, wbt = 0;  // sums with weights 1 / seconds^2
  for (size_t i = begin; i < end; ++i) {
    const auto [b, t] = points[i];
    w += 1 / (t * t);
    wb += b / (t * t);
    wbb += b * b / (t * t);
    wt += 1 / t;
    wbt += b / t;
  }
  const double det = w * wbb - wb * wb;
  LatencyBandwidth line;
  if (end - begin > 1 && det > 0) {
    line = {(wbb * wt - wb * wbt) / det, (w * wbt - wb * wt) / det};
  } else {
    line = {wt / w, 0};
  }
  if (line.alpha < 0) line = {0, wbt / wbb};
  if (line.beta < 0) line = {wt / w, 0};
  return line;
}

FittedCurve FitCurve(const std::vector<ProfilePoint>& points) {
  std::vector<Candidate> candidates;
  for (const ProfilePoint& x : points) {
    candidates.push_back({{static_cast<double>(x.bytes), x.median}, candidates.size()});
  }
  FittedCurve out;
  out.spikes = RemoveSpikes(&candidates);
  std::vector<BytesSeconds> p(candidates.begin(), candidates.end());
  MakeMonotone(&p);
  const std::vector<Regime> regimes = SplitRegimes(p);

  constexpr auto kMeasured = PointSource::kMeasured;
  Knots knots;
  const double below = SlopeThrough(regimes.front().line, p.front());
  knots.Add(0, std::max(0.0, p.front().seconds - below * p.front().bytes), PointSource::kBelow,
            PointSource::kBelow);
  for (size_t r = 0; r < regimes.size(); ++r) {
    for (size_t i = regimes[r].begin; i + 1 < regimes[r].end; ++i) {
      knots.Add(p[i].bytes, p[i].seconds, kMeasured, kMeasured);
    }
    const BytesSeconds& a = p[regimes[r].end - 1];
    if (r + 1 == regimes.size()) {
      knots.Add(a.bytes, a.seconds, kMeasured, PointSource::kAbove);
      break;
    }
    const BytesSeconds& c = p[regimes[r].end];
    knots.Add(a.bytes, a.seconds, kMeasured, PointSource::kBetweenRegimes);
    AddBridge(a, c, SlopeThrough(regimes[r].line, a), SlopeThrough(regimes[r + 1].line, c), &knots);
    out.changes.push_back({a.bytes, c.bytes});
  }
  // A single point says nothing of the bandwidth: twice the bytes, twice the time.
  out.time = knots.Finish(p.size() == 1 ? p[0].seconds / p[0].bytes
                                        : SlopeThrough(regimes.back().line, p.back()));
  return out;
}

TimeCurve Blend(const TimeCurve& a, const TimeCurve& b, double weight) {
  std::vector<double> sizes;
  for (const TimeCurve* curve : {&a, &b}) {
    for (const TimeCurve::Knot& k : curve->knots()) sizes.push_back(k.bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const auto blend = [weight](double x, double y) {
    const double z = x + weight * (y - x);
    return weight > 1 ? std::max(y, z) : z;
  };
  Knots knots;
  double most = 0;
  for (double bytes : sizes) {
    most = std::max(most, blend(a.Seconds(bytes), b.Seconds(bytes)));
    knots.Add(bytes, most, PointSource::kMeasured, PointSource::kMeasured);
  }
  return knots.Finish(blend(a.knots().back().slope, b.knots().back().slope));
}

}  // namespace lins
