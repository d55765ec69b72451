// Local reductions: order, rounding, NaN, every operator.
#include "comm/reduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lins {
namespace {

at::Tensor Reduced(const std::vector<at::Tensor>& parts, ReduceOp op) {
  at::Tensor out = at::empty_like(parts[0]);
  std::vector<const void*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(part.const_data_ptr());
  ReduceInOrder(out.mutable_data_ptr(), pointers, out.numel(), out.scalar_type(), op);
  return out;
}

TEST(Reduce, SumsRunFromLeftToRight) {
  const float big = 1e8f;  // (1 + big) - big = 0, but (big - big) + 1 = 1
  const auto a = at::full({3}, 1.0f), b = at::full({3}, big), c = at::full({3}, -big);
  EXPECT_EQ(Reduced({a, b, c}, ReduceOp::kSum)[0].item<float>(), 0);
  EXPECT_EQ(Reduced({b, c, a}, ReduceOp::kSum)[0].item<float>(), 1);
}

TEST(Reduce, NarrowTypesRoundOnce) {
  // 256 + 1 + 1 = 258 is a bfloat16; rounding after each step would stay at 256.
  const auto big = at::full({5}, 256, at::kBFloat16), one = at::ones({5}, at::kBFloat16);
  EXPECT_EQ(Reduced({big, one, one}, ReduceOp::kSum)[4].item<float>(), 258);
  // The sum overflows half, the average does not.
  const auto half = at::full({5}, 60000, at::kHalf);
  EXPECT_EQ(Reduced({half, half}, ReduceOp::kAvg)[4].item<float>(),
            at::full({}, 60000, at::kHalf).item<float>());
}

TEST(Reduce, IntegersAreExact) {
  const int64_t big = (int64_t{1} << 53) + 1;
  EXPECT_EQ(Reduced({at::full({1}, big, at::kLong), at::full({1}, 1, at::kLong)}, ReduceOp::kSum)[0]
                .item<int64_t>(),
            big + 1);
}

TEST(Reduce, EveryOperator) {
  const auto a = at::tensor({6, 3, -2}, at::kInt), b = at::tensor({3, 5, 7}, at::kInt);
  EXPECT_TRUE(at::equal(Reduced({a, b}, ReduceOp::kProduct), at::tensor({18, 15, -14}, at::kInt)));
  EXPECT_TRUE(at::equal(Reduced({a, b}, ReduceOp::kMin), at::tensor({3, 3, -2}, at::kInt)));
  EXPECT_TRUE(at::equal(Reduced({a, b}, ReduceOp::kMax), at::tensor({6, 5, 7}, at::kInt)));
  EXPECT_TRUE(at::equal(Reduced({a, b}, ReduceOp::kBand), at::tensor({2, 1, 6}, at::kInt)));
  EXPECT_TRUE(at::equal(Reduced({a, b}, ReduceOp::kBor), at::tensor({7, 7, -1}, at::kInt)));
  EXPECT_TRUE(at::equal(Reduced({a, b}, ReduceOp::kBxor), at::tensor({5, 6, -7}, at::kInt)));
}

TEST(Reduce, MinimaAndMaximaPropagateNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto a = at::tensor({nan, 1.0f}), b = at::tensor({1.0f, nan});
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(Reduced({a, b}, op).isnan().all().item<bool>());
  }
}

TEST(Reduce, EveryTypeAcrossBlocks) {
  const int64_t n = 5000;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kComplexDouble,
        at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    const at::Tensor x = at::arange(n, at::kLong).remainder(7).to(dtype);
    EXPECT_TRUE(at::equal(Reduced({x, x, x}, ReduceOp::kSum), x * 3)) << dtype;
    EXPECT_EQ(ReduceProblem(dtype, ReduceOp::kSum), "");
  }
  const at::Tensor yes = at::ones({3}, at::kBool), no = at::zeros({3}, at::kBool);
  EXPECT_TRUE(at::equal(Reduced({yes, no}, ReduceOp::kBor), yes));
  EXPECT_NE(ReduceProblem(at::kBool, ReduceOp::kSum), "");
}

}  // namespace
}  // namespace lins
