#include "optim/adam8bit.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "mesh/error.h"
#include "mesh/simd.h"
#include "optim/blocks.h"
#include "optim/on_device.h"

namespace lins {
namespace {

using namespace codes8;
using Constants = Adam8bitConstants;

// Each loop reads and writes few arrays: together they would take half as long again, for want of
// registers.

// A block's new moments; returns the bits of the largest.
LINS_SIMD int32_t NewMoments(const Constants& c, int64_t n, const float* __restrict grad,
                             const uint8_t* __restrict codes, float scale, float* __restrict m) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    m[i] = Adam8bitMoment(c, grad[i], SignedValue(codes[i], scale));
    const auto size = std::bit_cast<int32_t>(std::fabs(m[i]));
    largest = largest < size ? size : largest;
  }
  return largest;
}
LINS_SIMD int32_t NewSquares(const Constants& c, int64_t n, const float* __restrict grad,
                             const uint8_t* __restrict codes, float scale, float* __restrict v) {
  int32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    v[i] = Adam8bitSquare(c, grad[i], UnsignedValue(codes[i], scale));
    const auto size = std::bit_cast<int32_t>(v[i]);
    largest = largest < size ? size : largest;
  }
  return largest;
}

LINS_SIMD void Parameters(const Constants& c, int64_t n, float* __restrict p,
                          const float* __restrict m, const float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    p[i] = Adam8bitParameter(c, p[i], m[i], v[i]);
  }
}

LINS_SIMD void Noise(int64_t n, uint32_t key, uint32_t index, uint32_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = RandomBits(key, index + static_cast<uint32_t>(i));
}
LINS_SIMD void StoreMoments(int64_t n, const float* __restrict m, float inverse,
                            const uint32_t* __restrict noise, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(MomentCode(m[i], inverse, noise[i]));
  }
}
LINS_SIMD void StoreSquares(int64_t n, const float* __restrict v, float inverse,
                            const uint32_t* __restrict noise, uint8_t* __restrict codes) {
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(SquareCode(v[i], inverse, noise[i]));
  }
}

LINS_SIMD void Decayed(const Constants& c, int64_t n, const float* __restrict g,
                       const float* __restrict p, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Adam8bitDecayed(c, g[i], p[i]);
}

void UpdateBlock(const Constants& c, int64_t n, float* p, const float* grad, uint8_t* m8,
                 uint8_t* m_scale, uint8_t* v8, uint8_t* v_scale, uint32_t key, int64_t index) {
  alignas(64) float m[kQuantBlock], v[kQuantBlock], decayed[kQuantBlock];
  if (c.l2 != 0) {
    Decayed(c, n, grad, p, decayed);
    grad = decayed;
  }
  const int32_t m_largest = NewMoments(c, n, grad, m8, ScaleOf(*m_scale), m);
  const int32_t v_largest = NewSquares(c, n, grad, v8, ScaleOf(*v_scale), v);
  Parameters(c, n, p, m, v);
  *m_scale = ScaleFor(m_largest);
  *v_scale = ScaleFor(v_largest);
  alignas(64) uint32_t noise[kQuantBlock];
  Noise(n, key, static_cast<uint32_t>(index), noise);
  StoreMoments(n, m, InverseOf(*m_scale), noise, m8);
  StoreSquares(n, v, InverseOf(*v_scale), noise, v8);
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
  const Rounding& moments = s.rounding;
  Slice slice = Uphill(s, a.maximize);
  const uint32_t copy_key = ~moments.key;  // other bits than the moments have
  if (slice.on_device) return device::Adam8bit(c, OnDevice(slice), x, copy_key);
  slice.rounding.key = copy_key;
  ForEachBlock<float, kQuantBlock>(slice, [&](const Block<float>& b) {
    const int64_t block = b.at / kQuantBlock;
    UpdateBlock(c, b.numel, b.param, b.grad, x.exp_avg + b.at, x.exp_avg_scale + block,
                x.exp_avg_sq + b.at, x.exp_avg_sq_scale + block, moments.key, moments.index + b.at);
  });
}

void Dequantize(Code code, const uint8_t* codes, const uint8_t* scales, int64_t n, float* out,
                bool on_device) {
  if (on_device) return device::Dequantize8(code == Code::kSigned, codes, scales, n, out);
  for (int64_t i = 0; i < n; ++i) {
    const float scale = ScaleOf(scales[i / kQuantBlock]);
    out[i] =
        code == Code::kUnsigned ? UnsignedValue(codes[i], scale) : SignedValue(codes[i], scale);
  }
}

void Quantize(Code code, const float* in, int64_t n, uint8_t* codes, uint8_t* scales,
              bool on_device) {
  if (on_device) return device::Quantize8(code == Code::kSigned, in, n, codes, scales);
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
