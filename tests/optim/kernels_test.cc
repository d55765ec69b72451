#include "optim/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lins {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor Values(int64_t n, at::ScalarType dtype, int64_t seed) {
  return at::sin(at::arange(n, at::kDouble) * (1.0 + 0.1 * seed) + seed).to(dtype);
}

// The formula of the header, in fp64.
void Reference(const AdamWStep& a, at::Tensor& p, const at::Tensor& grad, at::Tensor& m,
               at::Tensor& v) {
  const at::Tensor g = a.maximize ? -grad : grad;
  p = p * (1 - a.lr * a.weight_decay);
  m = m + (1 - a.beta1) * (g - m);
  v = a.beta2 * v + (1 - a.beta2) * g * g;
  p = p - a.lr / (1 - std::pow(a.beta1, a.step)) * m /
              (v.sqrt() / std::sqrt(1 - std::pow(a.beta2, a.step)) + a.eps);
}

TEST(AdamWUpdate, FollowsTheFormulaForAllSizesAndSettings) {
  const AdamWStep settings[] = {
      {},
      {.lr = 0.1, .beta1 = 0.2, .beta2 = 0.5, .eps = 1e-3, .weight_decay = 0},
      {.lr = 0.5, .weight_decay = 0.3, .maximize = true},
      {.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 1e-30}};
  for (const AdamWStep& s : settings) {
    for (int64_t n : {0, 1, 5, 64, 4095, 4096, 4097, 10000}) {
      for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        at::Tensor p = Values(n, dtype, 1), m = at::zeros({n}, dtype), v = at::zeros({n}, dtype);
        const auto widen = [](const at::Tensor& t) {
          return t.to(at::kDouble, false, /*copy=*/true);
        };
        at::Tensor p64 = widen(p), m64 = widen(m), v64 = widen(v);
        for (int64_t step = 1; step <= 3; ++step) {
          AdamWStep now = s;
          now.step = step;
          const at::Tensor g = Values(n, dtype, 1 + step);
          AdamWUpdate(now, p, g, m, v);
          Reference(now, p64, g.to(at::kDouble), m64, v64);
        }
        const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-12;
        EXPECT_TRUE(at::allclose(p.to(at::kDouble), p64, tolerance, tolerance)) << n;
        EXPECT_TRUE(at::allclose(v.to(at::kDouble), v64, tolerance, tolerance)) << n;
      }
    }
  }
}

TEST(AdamWUpdate, APieceGetsTheBitsOfTheWhole) {
  const int64_t n = 9001;
  at::Tensor p = Values(n, at::kFloat, 1), m = Values(n, at::kFloat, 2),
             v = Values(n, at::kFloat, 3).abs();
  const at::Tensor g = Values(n, at::kFloat, 4);
  at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
  AdamWUpdate({.step = 3}, p, g, m, v);
  for (int64_t at = 0, k = 1; at < n; at += k, k = k * 3 % 1000 + 1) {
    const int64_t count = std::min(k, n - at);
    AdamWUpdate({.step = 3}, p2.narrow(0, at, count), g.narrow(0, at, count),
                m2.narrow(0, at, count), v2.narrow(0, at, count));
  }
  EXPECT_TRUE(at::equal(p, p2));
  EXPECT_TRUE(at::equal(m, m2));
  EXPECT_TRUE(at::equal(v, v2));
}

TEST(AdamWUpdate, LowPrecisionGradientsAreWidened) {
  at::Tensor p = Values(33, at::kFloat, 1), m = at::zeros({33}), v = at::zeros({33});
  at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
  const at::Tensor g = Values(33, at::kBFloat16, 2);
  AdamWUpdate({}, p, g, m, v);
  AdamWUpdate({}, p2, g.to(at::kFloat), m2, v2);
  EXPECT_TRUE(at::equal(p, p2));
}

TEST(PowerSum, SumsPowers) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor x = at::tensor({3.0, -4.0, 0.0}, at::kDouble).to(dtype);
    EXPECT_EQ(PowerSum(x, 1), 7);
    EXPECT_EQ(PowerSum(x, 2), 25);
    EXPECT_EQ(PowerSum(x, kInf), 4);
    for (double p : {1.0, 2.0, kInf}) EXPECT_EQ(PowerSum(x.narrow(0, 0, 0), p), 0);
  }
  // 17 elements: whole lanes of eight and a rest. fp32 would lose the ones beside 2^24 squared.
  at::Tensor x = at::ones({17});
  x[0] = 16777216.0f;
  EXPECT_EQ(PowerSum(x, 2), 16777216.0 * 16777216.0 + 16);
}

TEST(PowerSum, ShowsWhatIsNotFinite) {
  for (double bad : {kInf, -kInf, std::nan("")}) {
    for (int64_t at : {0, 8, 16}) {
      at::Tensor x = at::ones({17});
      x[at] = bad;
      for (double p : {1.0, 2.0, kInf})
        EXPECT_FALSE(std::isfinite(PowerSum(x, p))) << bad << " " << p;
    }
  }
}

}  // namespace
}  // namespace lins
