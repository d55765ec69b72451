// Local reductions: order, rounding, NaN, every operator.
#include "comm/reduce.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lins {
namespace {

at::Tensor Reduced(const std::vector<at::Tensor>& parts, ReduceOp op,
                   const std::vector<int64_t>& runs = {}, int64_t divisor = 0) {
  at::Tensor out = at::empty_like(parts[0]);
  std::vector<const void*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(part.const_data_ptr());
  ReduceInOrder(out.mutable_data_ptr(), pointers, out.numel(), out.scalar_type(), op, runs,
                divisor);
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

TEST(Reduce, RunsAreReducedFirst) {
  const auto reduced = [](const std::vector<float>& values, at::ScalarType dtype, ReduceOp op) {
    std::vector<at::Tensor> parts;
    for (const float value : values) parts.push_back(at::full({3}, value, dtype));
    return Reduced(parts, op, /*runs=*/{2, 2})[2].item<float>();
  };
  const float big = 1e8f;
  EXPECT_EQ(reduced({1, big, -big, 1}, at::kFloat, ReduceOp::kSum), 0);  // (1 + b) + (-b + 1)
  EXPECT_EQ(reduced({big, -big, 1, 1}, at::kFloat, ReduceOp::kSum), 2);
  EXPECT_EQ(reduced({big, -big, 1, 1}, at::kFloat, ReduceOp::kAvg), 0.5);
  EXPECT_EQ(reduced({2, 3, 5, 7}, at::kFloat, ReduceOp::kProduct), 210);
  EXPECT_EQ(reduced({2, 9, 5, 7}, at::kInt, ReduceOp::kMax), 9);
  // Each run is rounded: 256 + 1 is 256 as a bfloat16. Averages are rounded once.
  EXPECT_EQ(reduced({256, 1, 256, 1}, at::kBFloat16, ReduceOp::kSum), 512);
  EXPECT_EQ(reduced({256, 1, 1, 254}, at::kBFloat16, ReduceOp::kAvg), 128);
  EXPECT_EQ(reduced({60000, 60000, -60000, -60000}, at::kHalf, ReduceOp::kAvg), 0);
}

// Runs of their own calls and one call give the same bits.
TEST(Reduce, RunsInTwoStepsGiveTheSame) {
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 6; ++i) {
    parts.push_back(at::sin(at::arange(5000, at::kFloat) * (1.7f + static_cast<float>(i))));
  }
  const at::Tensor sums[] = {Reduced({parts[0], parts[1], parts[2]}, ReduceOp::kSum),
                             Reduced({parts[3], parts[4], parts[5]}, ReduceOp::kSum)};
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    EXPECT_TRUE(at::equal(Reduced({sums[0], sums[1]}, op, /*runs=*/{}, /*divisor=*/6),
                          Reduced(parts, op, /*runs=*/{3, 3})));
    EXPECT_TRUE(at::equal(Reduced({sums[0], parts[3], parts[4], parts[5]}, op, {1, 3}, 6),
                          Reduced(parts, op, {3, 3})));
  }
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
