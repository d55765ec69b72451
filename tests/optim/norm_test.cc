#include "optim/norm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "values.h"

namespace lins {
namespace {

TEST(PowerSum, SumsPowers) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::tensor({3.0, -4.0, 0.0}, at::kDouble).to(dtype);
    EXPECT_EQ(PowerSum(x, 1), 7);
    EXPECT_EQ(PowerSum(x, 2), 25);
    EXPECT_EQ(PowerSum(x, kInf), 4);
    for (double p : {1.0, 2.0, kInf}) EXPECT_EQ(PowerSum(x.narrow(0, 0, 0), p), 0);
  }
  // 17 elements: whole lanes of sixteen and a rest. fp32 would lose the ones beside 2^24 squared.
  at::Tensor x = at::ones({17});
  x[0] = 16777216.0f;
  EXPECT_EQ(PowerSum(x, 2), 16777216.0 * 16777216.0 + 16);
}

TEST(PowerSum, OfManyElementsIsExactOnWholeNumbersWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t n : {2047, 2049, 65536, 65537, 300'000}) {
      const at::Tensor x = (at::arange(n, at::kLong) % 7 - 3).to(dtype);
      const at::Tensor d = x.to(at::kDouble);
      for (int threads : {1, 3}) {
        at::set_num_threads(threads);
        EXPECT_EQ(PowerSum(x, 1), d.abs().sum().item<double>()) << n;
        EXPECT_EQ(PowerSum(x, 2), d.square().sum().item<double>()) << n;
        EXPECT_EQ(PowerSum(x, kInf), 3) << n;
      }
    }
  }
  at::set_num_threads(before);
}

TEST(PowerSum, ShowsWhatIsNotFinite) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (double bad : {kInf, -kInf, std::nan("")}) {
      for (int64_t at : {0, 8, 16, 70'000}) {
        at::Tensor x = at::ones({70'001}, dtype);
        x[at] = bad;
        for (double p : {1.0, 2.0, kInf})
          EXPECT_FALSE(std::isfinite(PowerSum(x, p))) << bad << " " << p << " " << at;
      }
    }
  }
}

}  // namespace
}  // namespace lins
