#include "optim/convert.h"

#include "mesh/error.h"
#include "mesh/simd.h"

namespace lins {
namespace {

LINS_SIMD void Scale(const float* __restrict in, int64_t n, float scale, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * in[i];
}
LINS_SIMD void Scale(const double* __restrict in, int64_t n, double scale, double* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * in[i];
}
LINS_SIMD void FromBFloat16s(const uint16_t* __restrict in, int64_t n, float scale,
                             float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * FromBFloat16(in[i]);
}
LINS_SIMD void FromHalves(const uint16_t* __restrict in, int64_t n, float scale,
                          float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * FromHalf(in[i]);
}

LINS_SIMD void ToBFloat16s(const float* __restrict in, int64_t n, uint16_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToBFloat16(in[i]);
}
LINS_SIMD void ToBFloat16s(const float* __restrict in, int64_t n, uint32_t key, uint32_t index,
                           uint16_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = ToBFloat16(in[i], RandomBits(key, index + static_cast<uint32_t>(i)));
  }
}
LINS_SIMD void ToHalves(const float* __restrict in, int64_t n, uint16_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToHalf(in[i]);
}
LINS_SIMD void ToHalves(const float* __restrict in, int64_t n, uint32_t key, uint32_t index,
                        uint16_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = ToHalf(in[i], RandomBits(key, index + static_cast<uint32_t>(i)));
  }
}

template <typename T>
void WidenTo(const void* in, c10::ScalarType type, int64_t n, double scale, T* out) {
  const T s = static_cast<T>(scale);
  switch (type) {
    case c10::ScalarType::Float:
      if constexpr (std::is_same_v<T, float>) {
        Scale(static_cast<const float*>(in), n, s, out);
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = s * static_cast<const float*>(in)[i];
      }
      return;
    case c10::ScalarType::Double:
      if constexpr (std::is_same_v<T, double>) {
        Scale(static_cast<const double*>(in), n, s, out);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          out[i] = s * static_cast<float>(static_cast<const double*>(in)[i]);
        }
      }
      return;
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Half: {
      const auto* bits = static_cast<const uint16_t*>(in);
      const auto widen = type == c10::ScalarType::Half ? FromHalves : FromBFloat16s;
      if constexpr (std::is_same_v<T, float>) {
        widen(bits, n, s, out);
      } else {
        float one;
        for (int64_t i = 0; i < n; ++i) {
          widen(bits + i, 1, 1, &one);
          out[i] = s * one;
        }
      }
      return;
    }
    default:
      LINS_CHECK(false, "no gradients of type ", c10::toString(type));
  }
}

}  // namespace

void Widen(const void* in, c10::ScalarType type, int64_t n, double scale, float* out) {
  WidenTo(in, type, n, scale, out);
}
void Widen(const void* in, c10::ScalarType type, int64_t n, double scale, double* out) {
  WidenTo(in, type, n, scale, out);
}

void Narrow(const float* in, int64_t n, const Rounding& r, c10::ScalarType type, void* out) {
  auto* bits = static_cast<uint16_t*>(out);
  const auto index = static_cast<uint32_t>(r.index);
  switch (type) {
    case c10::ScalarType::Float:
      for (int64_t i = 0; i < n; ++i) static_cast<float*>(out)[i] = in[i];
      return;
    case c10::ScalarType::BFloat16:
      return r.stochastic ? ToBFloat16s(in, n, r.key, index, bits) : ToBFloat16s(in, n, bits);
    case c10::ScalarType::Half:
      return r.stochastic ? ToHalves(in, n, r.key, index, bits) : ToHalves(in, n, bits);
    default:
      LINS_CHECK(false, "no parameters of type ", c10::toString(type));
  }
}

void Narrow(const double* in, int64_t n, const Rounding& r, c10::ScalarType type, void* out) {
  constexpr int64_t kChunk = 256;
  float chunk[kChunk];
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t count = n - at < kChunk ? n - at : kChunk;
    for (int64_t i = 0; i < count; ++i) chunk[i] = static_cast<float>(in[at + i]);
    Narrow(chunk, count, {r.stochastic, r.key, r.index + at}, type,
           static_cast<char*>(out) + at * size);
  }
}

}  // namespace lins
