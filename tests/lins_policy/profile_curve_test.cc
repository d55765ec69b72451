// One curve made into a function of bytes: spikes, monotony, regimes, what is marked as what.
#include "lins_policy/profile_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lins {
namespace {

std::vector<ProfilePoint> Points(std::vector<std::pair<int64_t, double>> points) {
  std::vector<ProfilePoint> out;
  for (const auto& [bytes, seconds] : points) out.push_back({bytes, seconds, 0, 0, 1, ""});
  return out;
}

// alpha + beta * bytes at powers of two, from 2^first.
std::vector<ProfilePoint> Line(int first, int last, double alpha, double beta) {
  std::vector<ProfilePoint> out;
  for (int i = first; i <= last; ++i) {
    const int64_t bytes = int64_t{1} << i;
    out.push_back({bytes, alpha + beta * bytes, 0, 0, 1, ""});
  }
  return out;
}

PointSource SourceAt(const TimeCurve& time, double bytes) {
  PointSource source;
  time.Seconds(bytes, &source);
  return source;
}

TEST(ProfileCurve, ALineIsExactEverywhereAndMarkedOutsideItsPoints) {
  const FittedCurve c = FitCurve(Line(12, 20, 1e-5, 1e-9));
  for (double bytes : {1.0, 100.0, 4096.0, 5000.0, 65536.0, 700001.0, 1048576.0, 1e8}) {
    EXPECT_NEAR(c.time.Seconds(bytes) / (1e-5 + 1e-9 * bytes), 1, 1e-9) << bytes;
  }
  EXPECT_EQ(SourceAt(c.time, 4095), PointSource::kBelow);
  EXPECT_EQ(SourceAt(c.time, 4096), PointSource::kMeasured);
  EXPECT_EQ(SourceAt(c.time, 10001), PointSource::kMeasured);
  EXPECT_EQ(SourceAt(c.time, 1 << 20), PointSource::kMeasured);
  EXPECT_EQ(SourceAt(c.time, (1 << 20) + 1), PointSource::kAbove);
  EXPECT_TRUE(c.spikes.empty());
  EXPECT_TRUE(c.changes.empty());
}

TEST(ProfileCurve, FitsTheLeastRelativeErrorsWithoutNegativeTerms) {
  const LatencyBandwidth exact = FitLine({{1, 3}, {2, 5}, {4, 9}}, 0, 3);
  EXPECT_NEAR(exact.alpha, 1, 1e-12);
  EXPECT_NEAR(exact.beta, 2, 1e-12);
  const LatencyBandwidth steep = FitLine({{1, 1}, {2, 4}}, 0, 2);  // the plain fit has alpha = -2
  EXPECT_EQ(steep.alpha, 0);
  EXPECT_NEAR(steep.beta, (1 + 0.5) / (1 + 0.25), 1e-12);  // sum(b/t) / sum(b^2/t^2)
  const LatencyBandwidth falling = FitLine({{1, 2}, {2, 1}}, 0, 2);
  EXPECT_EQ(falling.beta, 0);
  EXPECT_NEAR(falling.alpha, (0.5 + 1) / (0.25 + 1), 1e-12);  // sum(1/t) / sum(1/t^2)
}

TEST(ProfileCurve, ASpikeAnywhereIsNotUsed) {
  const std::vector<ProfilePoint> clean = Line(12, 24, 2e-5, 1e-10);
  for (size_t spike = 0; spike < clean.size(); ++spike) {
    std::vector<ProfilePoint> points = clean;
    points[spike].median *= 10;
    const FittedCurve c = FitCurve(points);
    EXPECT_EQ(c.spikes, std::vector<size_t>{spike});
    for (const ProfilePoint& p : clean) {
      EXPECT_NEAR(c.time.Seconds(p.bytes) / p.median, 1, 1e-9) << spike << " at " << p.bytes;
    }
  }
}

TEST(ProfileCurve, TwoPointsHaveNoSpikes) {
  EXPECT_TRUE(FitCurve(Points({{1, 1}, {2, 10}})).spikes.empty());
  EXPECT_TRUE(FitCurve(Points({{1, 10}, {2, 1}})).spikes.empty());
}

TEST(ProfileCurve, ALatencyJumpIsARegimeAndNoSpike) {
  // Twice the time from one size on, and the same afterwards.
  std::vector<ProfilePoint> points = Line(12, 16, 1e-5, 0);
  for (const ProfilePoint& p : Line(17, 21, 4e-5, 0)) points.push_back(p);
  const FittedCurve c = FitCurve(points);
  EXPECT_TRUE(c.spikes.empty());
  ASSERT_EQ(c.changes.size(), 1);
  EXPECT_EQ(c.changes[0].below, 1 << 16);
  EXPECT_EQ(c.changes[0].above, 1 << 17);
  EXPECT_EQ(SourceAt(c.time, 1 << 16), PointSource::kMeasured);
  EXPECT_EQ(SourceAt(c.time, 100000), PointSource::kBetweenRegimes);
  EXPECT_EQ(SourceAt(c.time, 1 << 17), PointSource::kMeasured);
  EXPECT_NEAR(c.time.Seconds(70000), 4e-5, 1e-12);  // the jump may come at once
  EXPECT_NEAR(c.time.Seconds(1 << 16), 1e-5, 1e-18);
}

TEST(ProfileCurve, BetweenRegimesEachLineGoesOnUntilTheyMeet) {
  // 1e-3 up to 2^16 bytes and 1e-9 a byte from 2^20 on meet at 1e6 bytes.
  std::vector<ProfilePoint> points = Line(12, 16, 1e-3, 0);
  for (const ProfilePoint& p : Line(20, 26, 0, 1e-9)) points.push_back(p);
  const FittedCurve c = FitCurve(points);
  ASSERT_EQ(c.changes.size(), 1);
  EXPECT_NEAR(c.time.Seconds(5e5), 1e-3, 1e-9);
  EXPECT_NEAR(c.time.Seconds(1.02e6), 1.02e-3, 1e-9);
  EXPECT_EQ(SourceAt(c.time, 5e5), PointSource::kBetweenRegimes);
}

TEST(ProfileCurve, BetweenRegimesStraightWhereTheSecondIsFasterFromTheStart) {
  std::vector<ProfilePoint> points = Line(12, 16, 0, 1e-8);                 // 0.66 ms at 2^16
  for (const ProfilePoint& p : Line(19, 24, 0, 3e-9)) points.push_back(p);  // 1.57 ms at 2^19
  const FittedCurve c = FitCurve(points);
  ASSERT_EQ(c.changes.size(), 1);
  EXPECT_NEAR(c.time.Seconds(2e5), 65536e-8 + (3e-9 * 524288 - 65536e-8) * (2e5 - 65536) / 458752,
              1e-12);
}

TEST(ProfileCurve, FallingTimesAreGivenTheirMean) {
  const FittedCurve c = FitCurve(Points({{1024, 42}, {2048, 40}, {4096, 50}, {8192, 70}}));
  EXPECT_EQ(c.time.Seconds(1024), 41);
  EXPECT_EQ(c.time.Seconds(2048), 41);
  EXPECT_EQ(c.time.Seconds(4096), 50);
}

TEST(ProfileCurve, OnePointIsALatencyBelowAndABandwidthAbove) {
  const TimeCurve time = FitCurve(Points({{1000, 2.0}})).time;
  EXPECT_EQ(time.Seconds(10), 2);
  EXPECT_EQ(time.Seconds(1000), 2);
  EXPECT_EQ(time.Seconds(4000), 8);
}

TEST(ProfileCurve, NeverFallsWhateverWasMeasured) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(-6, 1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<ProfilePoint> points;
    int64_t bytes = 1 + random() % 5;
    const int count = 1 + random() % 12;
    for (int i = 0; i < count; ++i) {
      points.push_back({bytes, std::pow(10, exponent(random)), 0, 0, 1, ""});
      bytes += 1 + (bytes << random() % 5) * (random() % 2);
    }
    const TimeCurve time = FitCurve(points).time;
    const TimeCurve other = FitCurve(Line(2, 12, 1e-3, 1e-4)).time;
    for (const TimeCurve& t : {time, Blend(time, other, 0.3), Blend(other, time, 2.5)}) {
      double last = 0, next = 0;
      for (double b = 1; b < 4.0 * bytes; b = std::max(b + 1, std::floor(b * 1.01))) {
        next = t.Seconds(b);
        ASSERT_TRUE(std::isfinite(next));
        ASSERT_GE(next, last) << "round " << round << " at " << b;
        last = next;
      }
      for (const TimeCurve::Knot& k : t.knots()) {
        ASSERT_LE(t.Seconds(std::max(0.0, k.bytes - 1)), t.Seconds(k.bytes));
      }
    }
  }
}

TEST(ProfileCurve, EveryPointOfACurveWithoutNoiseIsExact) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<ProfilePoint> points;
    double seconds = 1e-5;
    for (int i = 10; i < 24; ++i) {
      points.push_back({int64_t{1} << i, seconds, 0, 0, 1, ""});
      seconds *= 1 + (random() % 100) / 100.0;  // at most twice from one size to the next
    }
    const FittedCurve c = FitCurve(points);
    ASSERT_TRUE(c.spikes.empty());
    for (const ProfilePoint& p : points) ASSERT_EQ(c.time.Seconds(p.bytes), p.median);
  }
}

TEST(ProfileCurve, BlendsLieBetweenAndContinueBeyond) {
  const TimeCurve a = FitCurve(Line(10, 20, 1e-5, 1e-9)).time;
  const TimeCurve b = FitCurve(Line(10, 20, 3e-5, 2e-9)).time;
  for (double bytes : {0.0, 1024.0, 5000.0, 1e6, 1e8}) {
    const double x = 1e-5 + 1e-9 * bytes, y = 3e-5 + 2e-9 * bytes;
    EXPECT_NEAR(Blend(a, b, 0.25).Seconds(bytes) / (x + 0.25 * (y - x)), 1, 1e-9);
    EXPECT_NEAR(Blend(a, b, 2).Seconds(bytes) / (x + 2 * (y - x)), 1, 1e-9);
    EXPECT_NEAR(Blend(b, a, 2).Seconds(bytes) / x, 1,
                1e-9);  // never less than what it goes on from
  }
}

}  // namespace
}  // namespace lins
