#include "kernels/rounding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace lins {
namespace {

TEST(Half, EveryNumberIsWidenedAsAtenDoes) {
  const at::Tensor bits = at::arange(65536, at::kInt).to(at::kShort);
  const at::Tensor want = bits.view(at::kHalf).to(at::kFloat);
  for (int64_t i = 0; i < 65536; ++i) {
    const float got = FromHalf(static_cast<uint16_t>(i)), exact = want[i].item<float>();
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(got)) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(exact)) << i;
    }
  }
}

// Numbers of all exponents, and the halves between neighbours of fp16 and bf16 with their own
// neighbours.
at::Tensor Numbers() {
  std::vector<float> out;
  for (uint32_t i = 0; i < 200'000; ++i) out.push_back(std::bit_cast<float>(RandomBits(3, i)));
  for (uint32_t i = 0; i < 65536; ++i) {
    for (int drop : {13, 16}) {
      const uint32_t base = drop == 13 ? std::bit_cast<uint32_t>(FromHalf(i)) : i << 16;
      for (int near : {-1, 0, 1}) {
        out.push_back(std::bit_cast<float>(base + (1u << (drop - 1)) + near));
      }
    }
  }
  for (float x = 0x1p-26f; x < 0x1p-13f; x *= 1.001f) out.push_back(x);
  return at::tensor(out);
}

TEST(Narrowing, RoundsToNearestEvenAsAtenDoes) {
  const at::Tensor x = Numbers(), half = x.to(at::kHalf), bf16 = x.to(at::kBFloat16);
  const float* in = x.const_data_ptr<float>();
  const auto* h = static_cast<const uint16_t*>(half.const_data_ptr());
  const auto* b = static_cast<const uint16_t*>(bf16.const_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::isnan(in[i])) {
      EXPECT_TRUE(std::isnan(FromHalf(ToHalf(in[i])))) << i;
      EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(in[i])))) << i;
    } else {
      ASSERT_EQ(ToHalf(in[i]), h[i]) << in[i];
      ASSERT_EQ(ToBFloat16(in[i]), b[i]) << in[i];
    }
  }
}

TEST(Narrowing, WithoutNoiseIsRoundingTowardsZeroAndNumbersThatFitStay) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const float x = FromHalf(static_cast<uint16_t>(i));
    if (std::isnan(x)) continue;
    for (uint32_t noise : {0u, 0x12345678u, 0xffffffffu}) ASSERT_EQ(ToHalf(x, noise), i);
  }
  EXPECT_EQ(FromHalf(ToHalf(1.0009765f, 0)), 1.0f);
  EXPECT_EQ(FromBFloat16(ToBFloat16(-1.0078124f, 0)), -1.0f);
}

}  // namespace
}  // namespace lins
