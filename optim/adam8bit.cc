#include "optim/adam8bit.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "mesh/error.h"
#include "mesh/simd.h"
#include "optim/blocks.h"

namespace lins {
namespace {

// A code c > 0 stands for the fp32 number of bits (c << kDrop) + base, times the block's scale.
constexpr int kDrop = 20;
constexpr uint32_t kSignedBase = (127 - 15) << 23, kUnsignedBase = (127 - 31) << 23;
constexpr uint32_t kHalf = 1u << (kDrop - 1);

struct Constants {
  float decay, l2, beta1, weight1, beta2, weight2, step_size, correction2, eps;
};

[[gnu::always_inline]] inline float ScaleOf(uint8_t scale) {
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23);
}
[[gnu::always_inline]] inline float InverseOf(uint8_t scale) {
  return std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23);
}

// Of a block with the given largest bits: values over the scale are at most 1.875, the largest
// code.
uint8_t ScaleFor(uint32_t largest) {
  const uint32_t exponent = (largest >> 23) + ((largest & 0x7fffffu) > (7u << kDrop) ? 1 : 0);
  return static_cast<uint8_t>(std::clamp<uint32_t>(exponent, 1, 253));
}

// No branches below: they would keep the compiler from using vector instructions.
[[gnu::always_inline]] inline uint32_t MaskIf(bool condition) {
  return -static_cast<uint32_t>(condition);
}
[[gnu::always_inline]] inline float UnsignedValue(uint32_t code, float scale) {
  return std::bit_cast<float>(((code << kDrop) + kUnsignedBase) & MaskIf(code != 0)) * scale;
}
[[gnu::always_inline]] inline float SignedValue(uint32_t code, float scale) {
  const uint32_t size = code & 127u, sign = (code & 128u) << 24;
  return std::bit_cast<float>((((size << kDrop) + kSignedBase) & MaskIf(size != 0)) | sign) * scale;
}
// noise: below 2^kDrop.
[[gnu::always_inline]] inline uint32_t SignedCode(float m, float inverse, uint32_t noise) {
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
[[gnu::always_inline]] inline uint32_t UnsignedCode(float v, float inverse, uint32_t noise) {
  const auto size = static_cast<int32_t>(std::bit_cast<uint32_t>(v * inverse));
  const int32_t rounded =
      (size - static_cast<int32_t>(kUnsignedBase) + static_cast<int32_t>(noise)) >> kDrop;
  const auto least = static_cast<int32_t>(v > 0);  // a positive value never becomes 0
  const int32_t code = rounded < 255 ? rounded : 255;
  return static_cast<uint32_t>(code > least ? code : least);
}

// New moments of a block into m and v; returns the bits of the largest of each.
LINS_SIMD void Moments(const Constants& c, int64_t n, const float* __restrict grad,
                       const uint8_t* __restrict m8, float m_scale, const uint8_t* __restrict v8,
                       float v_scale, float* __restrict m, float* __restrict v, int32_t* m_largest,
                       int32_t* v_largest) {
  int32_t largest_m = 0, largest_v = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i];
    m[i] = c.beta1 * SignedValue(m8[i], m_scale) + c.weight1 * g;
    v[i] = c.beta2 * UnsignedValue(v8[i], v_scale) + c.weight2 * g * g;
    const auto size_m = std::bit_cast<int32_t>(std::fabs(m[i])),
               size_v = std::bit_cast<int32_t>(v[i]);
    largest_m = largest_m < size_m ? size_m : largest_m;
    largest_v = largest_v < size_v ? size_v : largest_v;
  }
  *m_largest = largest_m;
  *v_largest = largest_v;
}

LINS_SIMD void Parameters(const Constants& c, int64_t n, float* __restrict p,
                          const float* __restrict m, const float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    p[i] = p[i] * c.decay + c.step_size * m[i] / (std::sqrt(v[i]) * c.correction2 + c.eps);
  }
}

LINS_SIMD void Store(int64_t n, const float* __restrict m, const float* __restrict v,
                     float m_inverse, float v_inverse, uint32_t key, uint32_t index,
                     uint8_t* __restrict m8, uint8_t* __restrict v8) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t noise = RandomBits(key, index + static_cast<uint32_t>(i));
    m8[i] = static_cast<uint8_t>(SignedCode(m[i], m_inverse, noise >> 16 << 4));
    v8[i] = static_cast<uint8_t>(UnsignedCode(v[i], v_inverse, (noise & 0xffffu) << 4));
  }
}

LINS_SIMD void Decayed(float l2, int64_t n, const float* __restrict g, const float* __restrict p,
                       float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = g[i] + l2 * p[i];
}

void UpdateBlock(const Constants& c, int64_t n, float* p, const float* grad, uint8_t* m8,
                 uint8_t* m_scale, uint8_t* v8, uint8_t* v_scale, uint32_t key, int64_t index) {
  alignas(64) float m[kQuantBlock], v[kQuantBlock], decayed[kQuantBlock];
  if (c.l2 != 0) {
    Decayed(c.l2, n, grad, p, decayed);
    grad = decayed;
  }
  int32_t m_largest, v_largest;
  Moments(c, n, grad, m8, ScaleOf(*m_scale), v8, ScaleOf(*v_scale), m, v, &m_largest, &v_largest);
  Parameters(c, n, p, m, v);
  *m_scale = ScaleFor(m_largest);
  *v_scale = ScaleFor(v_largest);
  Store(n, m, v, InverseOf(*m_scale), InverseOf(*v_scale), key, static_cast<uint32_t>(index), m8,
        v8);
}

}  // namespace

void Adam8bitUpdate(const AdamOptions& a, int64_t step, const Slice& s, const Moments8bit& x) {
  LINS_CHECK(s.type == c10::ScalarType::Float && !a.amsgrad, c10::toString(s.type));
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(step));
  const Constants c = {static_cast<float>(a.decoupled ? 1 - a.lr * a.weight_decay : 1),
                       static_cast<float>(a.decoupled ? 0 : a.weight_decay),
                       static_cast<float>(a.beta1),
                       static_cast<float>(1 - a.beta1),
                       static_cast<float>(a.beta2),
                       static_cast<float>(1 - a.beta2),
                       static_cast<float>(-(a.lr / correction1)),
                       static_cast<float>(1 / std::sqrt(correction2)),
                       static_cast<float>(a.eps)};
  static_assert(kBlock == kQuantBlock);
  const Rounding& moments = s.rounding;
  Slice slice = Uphill(s, a.maximize);
  slice.rounding.key = ~moments.key;  // other bits than the moments have
  ForEachBlock<float>(slice, [&](const Block<float>& b) {
    const int64_t block = b.at / kQuantBlock;
    UpdateBlock(c, b.numel, b.param, b.grad, x.exp_avg + b.at, x.exp_avg_scale + block,
                x.exp_avg_sq + b.at, x.exp_avg_sq_scale + block, moments.key, moments.index + b.at);
  });
}

void Dequantize(Code code, const uint8_t* codes, const uint8_t* scales, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float scale = ScaleOf(scales[i / kQuantBlock]);
    out[i] =
        code == Code::kUnsigned ? UnsignedValue(codes[i], scale) : SignedValue(codes[i], scale);
  }
}

void Quantize(Code code, const float* in, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t at = 0; at < n; at += kQuantBlock) {
    const int64_t count = std::min(kQuantBlock, n - at);
    uint32_t largest = 0;
    for (int64_t i = at; i < at + count; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(std::fabs(in[i])));
    }
    const uint8_t scale = scales[at / kQuantBlock] = ScaleFor(largest);
    for (int64_t i = at; i < at + count; ++i) {
      codes[i] = static_cast<uint8_t>(
          code == Code::kSigned ? SignedCode(in[i], InverseOf(scale), kHalf)
                                : UnsignedCode(std::max(in[i], 0.0f), InverseOf(scale), kHalf));
    }
  }
}

}  // namespace lins
