#include "optim/convert.h"

#include <gtest/gtest.h>

#include <set>

#include "values.h"

namespace lins {
namespace {

at::Tensor Odd() {
  const at::Tensor few = at::tensor({0.0, -0.0, 1e-45, -6e-8, 3e-8, 6.1e-5, 65519.0, 65520.0, -7e4,
                                     1.00390625, 1.01171875, 3.4e38, kInf, -kInf, std::nan("")},
                                    at::kDouble);
  return at::cat({few, Values(1000, at::kDouble, 1), Values(100, at::kDouble, 2) * 1e-6})
      .to(at::kFloat);
}

TEST(Narrow, RoundsToNearestAsAtenDoes) {
  const at::Tensor x = Odd();
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor out = at::empty({x.numel()}, dtype);
    Narrow(x.const_data_ptr<float>(), x.numel(), {}, dtype, out.mutable_data_ptr());
    EXPECT_TRUE(Same(out, x.to(dtype))) << dtype;
  }
}

TEST(Narrow, StochasticallyGoesToANeighbourAndKeepsTheMean) {
  constexpr int64_t kDraws = 20'000;
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // Between two numbers: normal ones, a negative one, denormals of fp16, and at their edge.
    for (double value : {1.001, -3.3, 1e-6, 3e-8, 6.09e-5, 0.75, -40000.1}) {
      const at::Tensor x = at::full({kDraws}, value, at::kFloat);
      const at::Tensor out = at::empty({kDraws}, dtype);
      Narrow(x.const_data_ptr<float>(), kDraws, {true, 11, 5}, dtype, out.mutable_data_ptr());
      const at::Tensor got = out.to(at::kDouble);
      const double exact = x[0].item<double>();
      const double low = got.min().item<double>(), high = got.max().item<double>();
      EXPECT_LE(low, exact);
      EXPECT_GE(high, exact);
      // Nothing lies between the two.
      EXPECT_TRUE(((got == low) | (got == high)).all().item<bool>());
      if (low < high) {
        const double p = (exact - low) / (high - low);
        const double share = (got == high).to(at::kDouble).mean().item<double>();
        EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / kDraws) + 1e-4) << value << dtype;
        const at::Tensor middle = at::full({1}, (low + high) / 2, at::kDouble).to(dtype);
        const double m = middle.item<double>();
        EXPECT_TRUE(m == low || m == high) << "not neighbours: " << low << " " << high;
      }
    }
    const at::Tensor special = at::tensor({kInf, -kInf, std::nan("")}, at::kDouble).to(at::kFloat);
    const at::Tensor out = at::empty({3}, dtype);
    Narrow(special.const_data_ptr<float>(), 3, {true, 1, 0}, dtype, out.mutable_data_ptr());
    EXPECT_TRUE(Same(out, special)) << dtype;
  }
}

TEST(Widen, IsExactAndScalesOnce) {
  for (at::ScalarType from : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = Odd().to(from);
    const at::Tensor f = at::empty({x.numel()}), d = at::empty({x.numel()}, at::kDouble);
    Widen(x.const_data_ptr(), from, x.numel(), 1, f.mutable_data_ptr<float>());
    Widen(x.const_data_ptr(), from, x.numel(), 0.3, d.mutable_data_ptr<double>());
    EXPECT_TRUE(Same(f, x.to(at::kFloat))) << from;
    EXPECT_TRUE(Same(d, x.to(at::kDouble) * 0.3)) << from;
  }
}

TEST(RandomBits, DiffersByKeyAndIndex) {
  std::set<uint32_t> seen;
  for (uint32_t key = 0; key < 100; ++key) {
    for (uint32_t index = 0; index < 100; ++index) seen.insert(RandomBits(key, index));
  }
  EXPECT_GE(seen.size(), 9998u);  // 10,000 draws of 2^32 collide 0.01 times
}

}  // namespace
}  // namespace lins
