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

// The instruction where it gives torch's bits; a call of torch itself only where nothing else does.
TEST(SquareRoots, WayFitsThisMachine) {
  const at::Tensor x = at::exp(Values(4096, at::kDouble, 1) * 40).to(at::kFloat);
  const at::Tensor nearest = x.to(at::kDouble).sqrt().to(at::kFloat);
  EXPECT_EQ(SqrtOfTorch() == SqrtWay::kInstruction, at::equal(x.sqrt(), nearest));
}

}  // namespace
}  // namespace lins
