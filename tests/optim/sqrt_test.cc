#include "optim/sqrt.h"

#include <gtest/gtest.h>

#include "values.h"

namespace lins {
namespace {

TEST(SquareRoots, HaveTheBitsOfAten) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (int64_t n : {1, 7, 8, 15, 16, 17, 1000}) {
      const at::Tensor x = at::exp(Values(n, at::kDouble, 1) * 80).to(dtype);
      const at::Tensor out = at::empty_like(x);
      if (dtype == at::kFloat) {
        SquareRoots(x.const_data_ptr<float>(), n, out.mutable_data_ptr<float>());
      } else {
        SquareRoots(x.const_data_ptr<double>(), n, out.mutable_data_ptr<double>());
      }
      EXPECT_TRUE(at::equal(out, x.sqrt())) << n;
    }
  }
}

// Numbers that no estimate serves, in every lane, between others.
TEST(SquareRoots, HaveTheBitsOfAtenForNumbersOfAllKinds) {
  const std::vector<float> odd = {0.0f,        -0.0f,     1e-45f,       1e-40f,   0x1p-126f,
                                  0x1p-101f,   0x1p-100f, 0x1p99f,      0x1p100f, 3e38f,
                                  (float)kInf, -1.0f,     std::nanf("")};
  for (size_t lane = 0; lane < 16; ++lane) {
    for (const float value : odd) {
      at::Tensor x = at::exp(Values(19, at::kDouble, 1) * 10).to(at::kFloat);
      x[static_cast<int64_t>(lane)] = value;
      const at::Tensor out = at::empty_like(x), want = x.sqrt();
      SquareRoots(x.const_data_ptr<float>(), x.numel(), out.mutable_data_ptr<float>());
      EXPECT_TRUE(at::allclose(out, want, 0, 0, /*equal_nan=*/true)) << value << " in " << lane;
      EXPECT_EQ(std::signbit(out[static_cast<int64_t>(lane)].item<float>()),
                std::signbit(want[static_cast<int64_t>(lane)].item<float>()) &&
                    !std::isnan(value) && value == 0)
          << value;
    }
  }
}

// The instruction where it gives torch's bits; a call of torch itself only where nothing else does.
TEST(SquareRoots, WayFitsThisMachine) {
  const at::Tensor x = at::exp(Values(4096, at::kDouble, 1) * 40).to(at::kFloat);
  const at::Tensor nearest = x.to(at::kDouble).sqrt().to(at::kFloat);
  EXPECT_EQ(SqrtOfTorch() == SqrtWay::kInstruction, at::equal(x.sqrt(), nearest));
}

}  // namespace
}  // namespace lins
