#include "optim/adam8bit.h"

#include <gtest/gtest.h>

#include <vector>

#include "optim/convert.h"
#include "values.h"

namespace lins {
namespace {

struct Codes {
  std::vector<uint8_t> codes, scales;
  explicit Codes(int64_t n) : codes(n), scales((n + kQuantBlock - 1) / kQuantBlock) {}
};

at::Tensor Stored(Code code, const at::Tensor& x) {
  Codes c(x.numel());
  Quantize(code, x.const_data_ptr<float>(), x.numel(), c.codes.data(), c.scales.data());
  const at::Tensor out = at::empty({x.numel()});
  Dequantize(code, c.codes.data(), c.scales.data(), x.numel(), out.mutable_data_ptr<float>());
  return out;
}

TEST(Quantize, ErrsByASixteenthAtMostOverTheRangeOfABlock) {
  for (int64_t n : {1, 255, 256, 257, 1000}) {
    // Magnitudes of 2^-14 to 1, in every block.
    const at::Tensor size = at::pow(2.0, -14 * at::frac(at::arange(n, at::kDouble) * 0.137));
    const at::Tensor x = (size * Values(n, at::kDouble, 3).sign()).to(at::kFloat);
    const at::Tensor got = Stored(Code::kSigned, x);
    EXPECT_LE(((got - x) / x).abs().max().item<double>(), 1.0 / 16) << n;
    const at::Tensor y = x.square();
    const at::Tensor squares = Stored(Code::kUnsigned, y);
    EXPECT_LE(((squares - y) / y).abs().max().item<double>(), 1.0 / 16) << n;
  }
}

TEST(Quantize, KeepsZeroAndWhatItHasStoredAlsoInOtherBlocks) {
  const at::Tensor x = Values(1000, at::kFloat, 1), zero = at::zeros({1000});
  EXPECT_TRUE(at::equal(Stored(Code::kSigned, zero), zero));
  EXPECT_TRUE(at::equal(Stored(Code::kUnsigned, zero), zero));
  for (Code code : {Code::kSigned, Code::kUnsigned}) {
    const at::Tensor once = Stored(code, code == Code::kSigned ? x : x.square());
    EXPECT_TRUE(at::equal(Stored(code, once), once));
    for (int64_t from : {1, 100, 255, 999}) {
      const at::Tensor part = once.narrow(0, from, 1000 - from);
      EXPECT_TRUE(at::equal(Stored(code, part), part)) << from;
    }
  }
}

TEST(Quantize, NeverStoresAPositiveSquareAsZero) {
  at::Tensor x = at::full({256}, 1e-30);
  x[0] = 1.0;
  EXPECT_TRUE((Stored(Code::kUnsigned, x) > 0).all().item<bool>());
}

// Runs `steps` of Adam in 8 bits and in fp64.
struct Pair {
  at::Tensor p, p64, m64, v64;
  Codes m, v;
  explicit Pair(const at::Tensor& start)
      : p(start.clone()),
        p64(start.to(at::kDouble)),
        m64(at::zeros_like(p64)),
        v64(at::zeros_like(p64)),
        m(start.numel()),
        v(start.numel()) {}
  Moments8bit moments() {
    return {m.codes.data(), m.scales.data(), v.codes.data(), v.scales.data()};
  }
  void Step(const AdamOptions& a, int64_t step, const at::Tensor& grad) {
    Slice s = SliceOf(p, grad, {});
    s.rounding.key = RandomBits(3, static_cast<uint32_t>(step));
    Adam8bitUpdate(a, step, s, moments());
    const at::Tensor g = grad.to(at::kDouble) * (a.maximize ? -1 : 1);
    p64 = p64 * (1 - a.lr * a.weight_decay);
    m64 = m64 + (1 - a.beta1) * (g - m64);
    v64 = a.beta2 * v64 + (1 - a.beta2) * g * g;
    p64 = p64 - a.lr / (1 - std::pow(a.beta1, step)) * m64 /
                    (v64.sqrt() / std::sqrt(1 - std::pow(a.beta2, step)) + a.eps);
  }
  at::Tensor ExpAvgSq() {
    const at::Tensor out = at::empty({p.numel()});
    Dequantize(Code::kUnsigned, v.codes.data(), v.scales.data(), p.numel(),
               out.mutable_data_ptr<float>());
    return out;
  }
};

TEST(Adam8bitUpdate, TheFirstStepIsExactToFp32) {
  for (int64_t n : {1, 70, 255, 256, 257, 5000}) {
    for (bool maximize : {false, true}) {
      Pair x(Values(n, at::kFloat, 1));
      x.Step({.lr = 0.1, .maximize = maximize}, 1, Values(n, at::kFloat, 2) + 0.01);
      EXPECT_TRUE(at::allclose(x.p.to(at::kDouble), x.p64, 1e-6, 1e-6)) << n;
    }
  }
}

// exp_avg_sq moves by 0.1 % of the gap per step, far less than one code: rounded to nearest it
// would stay where it is.
TEST(Adam8bitUpdate, SlowAveragesKeepMoving) {
  const int64_t n = 4096;
  Pair x(at::zeros({n}));
  for (int64_t step = 1; step <= 200; ++step) x.Step({}, step, at::full({n}, 1.0));
  for (int64_t step = 201; step <= 800; ++step) x.Step({}, step, at::full({n}, 2.0));
  const double got = x.ExpAvgSq().to(at::kDouble).mean().item<double>();
  const double want = x.v64.mean().item<double>();
  EXPECT_NEAR(got / want, 1, 0.02);
}

TEST(Adam8bitUpdate, FollowsAdamOverNoisyGradients) {
  const int64_t n = 3000;
  Pair x(at::zeros({n}));
  for (int64_t step = 1; step <= 50; ++step) {
    const at::Tensor noise = at::cos(at::arange(n, at::kDouble) * step * 1.7 + step);
    x.Step({.lr = 0.01}, step, (Values(n, at::kDouble, 1) + noise).to(at::kFloat));
  }
  const at::Tensor error = x.p.to(at::kDouble) - x.p64;
  EXPECT_LT(error.norm().item<double>(), 0.05 * x.p64.norm().item<double>());
}

}  // namespace
}  // namespace lins
