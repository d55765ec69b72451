// Reading and writing elements of several types, some at a time, for kernels.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/rounding.h"

namespace lins::device {

// kVec neighbours at once, where their address is a multiple of their size.
template <typename T, int kVec>
struct alignas(sizeof(T) * kVec) Pack {
  T at[kVec];
};

template <typename T, int kVec>
__device__ __forceinline__ void Load(const T* from, int n, bool aligned, T (&to)[kVec]) {
  if (aligned && n == kVec) {
    const auto pack = *reinterpret_cast<const Pack<T, kVec>*>(from);
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = pack.at[i];
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = i < n ? from[i] : T{};
  }
}

template <typename T, int kVec>
__device__ __forceinline__ void Store(const T (&from)[kVec], int n, bool aligned, T* to) {
  if (aligned && n == kVec) {
    Pack<T, kVec> pack;
#pragma unroll
    for (int i = 0; i < kVec; ++i) pack.at[i] = from[i];
    *reinterpret_cast<Pack<T, kVec>*>(to) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (i < n) to[i] = from[i];
    }
  }
}

// x[i] = scale * from[at + i], from any type; fp64 goes to fp32 by way of one rounding.
template <typename T, int kVec>
__device__ __forceinline__ void LoadWidened(const void* from, Element type, int64_t at, T scale,
                                            int n, bool aligned, T (&x)[kVec]) {
  switch (type) {
    case Element::kFloat: {
      float raw[kVec];
      Load(static_cast<const float*>(from) + at, n, aligned, raw);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] = scale * raw[i];
      return;
    }
    case Element::kDouble: {
      double raw[kVec];
      Load(static_cast<const double*>(from) + at, n, aligned, raw);
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] = scale * static_cast<T>(raw[i]);
      return;
    }
    case Element::kBFloat16:
    case Element::kHalf: {
      uint16_t raw[kVec];
      Load(static_cast<const uint16_t*>(from) + at, n, aligned, raw);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[i] = scale *
               static_cast<T>(type == Element::kHalf ? FromHalf(raw[i]) : FromBFloat16(raw[i]));
      }
      return;
    }
  }
}

// The copy of lower precision, rounded as the slice says; `at` counts from the slice's first.
template <typename T, int kVec>
__device__ __forceinline__ void StoreNarrowed(const T (&x)[kVec], const Slice& s, int64_t at, int n,
                                              bool aligned) {
  if (s.copy_type == Element::kFloat) {
    float out[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) out[i] = static_cast<float>(x[i]);
    Store(out, n, aligned, static_cast<float*>(s.copy) + at);
    return;
  }
  uint16_t out[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float value = static_cast<float>(x[i]);
    const bool half = s.copy_type == Element::kHalf;
    if (s.stochastic) {
      const uint32_t noise = RandomBits(s.key, static_cast<uint32_t>(s.index + at + i));
      out[i] = half ? ToHalf(value, noise) : ToBFloat16(value, noise);
    } else {
      out[i] = half ? ToHalf(value) : ToBFloat16(value);
    }
  }
  Store(out, n, aligned, static_cast<uint16_t*>(s.copy) + at);
}

}  // namespace lins::device
