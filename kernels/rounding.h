// Conversions between fp32 and its narrower relatives, and the random bits of stochastic rounding.
// No branches that depend on values, which would keep compilers from using vector instructions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/everywhere.h"

namespace lins {

// A value of 32 random bits for an element: the same for the same key and index, on every machine.
LINS_EVERYWHERE uint32_t RandomBits(uint32_t key, uint32_t index) {
  // The finalizer of Chris Wellons' hash prospector, "lowbias32".
  uint32_t x = index * 0x9e3779b9u + key;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

LINS_EVERYWHERE float FromBFloat16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// To nearest, ties to even; any NaN becomes the same one.
LINS_EVERYWHERE uint16_t ToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

// To one of the neighbours, by 32 random bits.
LINS_EVERYWHERE uint16_t ToBFloat16(float x, uint32_t noise) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + (noise >> 16)) >> 16;
  const uint32_t special = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : bits >> 16;
  return static_cast<uint16_t>((bits & 0x7f800000u) == 0x7f800000u ? special : rounded);
}

LINS_EVERYWHERE float FromHalf(uint16_t x) {
  const uint32_t size = x & 0x7fffu, sign = (x & 0x8000u) << 16;
  // Denormals are multiples of 2^-24; what is not finite keeps its exponent full.
  const float small = static_cast<float>(static_cast<int32_t>(size)) * 0x1p-24f;
  const uint32_t normal = (size << 13) + (112u << 23);
  const uint32_t special = 0x7f800000u | ((size & 0x3ffu) << 13);
  const uint32_t bits = size < 0x400u    ? std::bit_cast<uint32_t>(small)
                        : size < 0x7c00u ? normal
                                         : special;
  return std::bit_cast<float>(bits | sign);
}

LINS_EVERYWHERE uint16_t ToHalf(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), size = bits & 0x7fffffffu;
  // Beside 0.5 fp32 is spaced as denormals of fp16 are: the sum rounds.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
  const uint32_t large = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t half = size < 0x38800000u ? small : size < 0x47800000u ? normal : large;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

// To one of the neighbours: first onto the grid of fp16, which the conversion leaves alone.
LINS_EVERYWHERE uint16_t ToHalf(float x, uint32_t noise) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), size = bits & 0x7fffffffu;
  // Denormals are multiples of 2^-24: up where what is left reaches a draw from (0, 1].
  const float scaled = std::bit_cast<float>(size) * 0x1p24f, below = std::floor(scaled);
  const float draw = static_cast<float>((1 << 24) - static_cast<int32_t>(noise >> 8)) * 0x1p-24f;
  const float small = (below + (scaled - below >= draw ? 1.0f : 0.0f)) * 0x1p-24f;
  const uint32_t normal = (size + (noise >> 19)) & ~0x1fffu;
  const uint32_t onto = size < 0x38800000u   ? std::bit_cast<uint32_t>(small)
                        : size < 0x7f800000u ? normal
                                             : size;
  return ToHalf(std::bit_cast<float>(onto | (bits & 0x80000000u)));
}

}  // namespace lins
