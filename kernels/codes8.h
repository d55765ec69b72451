// The 8-bit numbers of AdamW8bit (optim/adam8bit.h), element by element: for kernels of host and
// device.
//
// A code c > 0 stands for the fp32 number of bits (c << kDrop) + base, times the block's scale.
// No branches: they would keep compilers from using vector instructions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/everywhere.h"

namespace lins {

constexpr int64_t kQuantBlock = 256;

namespace codes8 {

constexpr int kDrop = 20;
constexpr uint32_t kSignedBase = (127 - 15) << 23, kUnsignedBase = (127 - 31) << 23;
constexpr uint32_t kHalf = 1u << (kDrop - 1);  // noise that rounds to nearest

LINS_EVERYWHERE float ScaleOf(uint8_t scale) {
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23);
}
LINS_EVERYWHERE float InverseOf(uint8_t scale) {
  return std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23);
}

// Of a block with the given largest bits: values over the scale are at most 1.875, the largest
// code.
LINS_EVERYWHERE uint8_t ScaleFor(uint32_t largest) {
  const uint32_t exponent = (largest >> 23) + ((largest & 0x7fffffu) > (7u << kDrop) ? 1 : 0);
  return static_cast<uint8_t>(exponent < 1 ? 1 : exponent > 253 ? 253 : exponent);
}

LINS_EVERYWHERE uint32_t MaskIf(bool condition) { return -static_cast<uint32_t>(condition); }

LINS_EVERYWHERE float UnsignedValue(uint32_t code, float scale) {
  return std::bit_cast<float>(((code << kDrop) + kUnsignedBase) & MaskIf(code != 0)) * scale;
}
LINS_EVERYWHERE float SignedValue(uint32_t code, float scale) {
  const uint32_t size = code & 127u, sign = (code & 128u) << 24;
  return std::bit_cast<float>((((size << kDrop) + kSignedBase) & MaskIf(size != 0)) | sign) * scale;
}

// noise: below 2^kDrop.
LINS_EVERYWHERE uint32_t SignedCode(float m, float inverse, uint32_t noise) {
  constexpr uint32_t kLeast = kSignedBase + (1u << kDrop);
  const float x = std::fabs(m) * inverse;
  const uint32_t size = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (size - kSignedBase + noise) >> kDrop;
  const uint32_t code = rounded < 127u ? rounded : 127u;
  // Below the least value: that or 0, at random.
  const float part = x * (1.0f / std::bit_cast<float>(kLeast)) * (1u << kDrop);
  const auto draw = static_cast<float>(static_cast<int32_t>(noise ^ 0xfffffu));
  const uint32_t small = MaskIf(size < kLeast);
  return (code & ~small) | (static_cast<uint32_t>(part > draw) & small) |
         (std::bit_cast<uint32_t>(m) >> 31 << 7);
}
LINS_EVERYWHERE uint32_t UnsignedCode(float v, float inverse, uint32_t noise) {
  const auto size = static_cast<int32_t>(std::bit_cast<uint32_t>(v * inverse));
  const int32_t rounded =
      (size - static_cast<int32_t>(kUnsignedBase) + static_cast<int32_t>(noise)) >> kDrop;
  const auto least = static_cast<int32_t>(v > 0);  // a positive value never becomes 0
  const int32_t code = rounded < 255 ? rounded : 255;
  return static_cast<uint32_t>(code > least ? code : least);
}

// The two codes of an element's new moments, by its random bits.
LINS_EVERYWHERE uint32_t MomentCode(float m, float inverse, uint32_t noise) {
  return SignedCode(m, inverse, noise >> 16 << 4);
}
LINS_EVERYWHERE uint32_t SquareCode(float v, float inverse, uint32_t noise) {
  return UnsignedCode(v, inverse, (noise & 0xffffu) << 4);
}

}  // namespace codes8

struct Adam8bitConstants {
  float decay, l2, beta1, weight1, beta2, weight2, step_size, correction2, eps;
};

LINS_EVERYWHERE float Adam8bitDecayed(const Adam8bitConstants& c, float g, float p) {
  return g + c.l2 * p;
}

LINS_EVERYWHERE float Adam8bitMoment(const Adam8bitConstants& c, float g, float m) {
  return c.beta1 * m + c.weight1 * g;
}
LINS_EVERYWHERE float Adam8bitSquare(const Adam8bitConstants& c, float g, float v) {
  return c.beta2 * v + c.weight2 * g * g;
}

LINS_EVERYWHERE float Adam8bitParameter(const Adam8bitConstants& c, float p, float m, float v) {
  return p * c.decay + c.step_size * m / (std::sqrt(v) * c.correction2 + c.eps);
}

}  // namespace lins
