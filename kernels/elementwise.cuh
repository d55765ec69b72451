// The one pass over a slice that all elementwise rules share, a thread for every 16 bytes of
// parameters.
#pragma once

#include "kernels/elements.cuh"
#include "kernels/launch.h"

namespace lins::device {

// rule(p, g, s): changes the parameter and its kStates states, `g` being widened and scaled. A rule
// may be a value, or something that is worked out on the device first.
template <typename T, int kStates, typename Rule>
__global__ void __launch_bounds__(kThreads)
    ElementwiseKernel(const __grid_constant__ Slice s, const Rule rule, bool aligned) {
  constexpr int kVec = 16 / sizeof(T);
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
  if (at >= s.numel) return;
  const int n = s.numel - at < kVec ? static_cast<int>(s.numel - at) : kVec;
  T p[kVec], g[kVec], state[kStates > 0 ? kStates : 1][kVec];
  T* const param = static_cast<T*>(s.param) + at;
  Load(param, n, aligned, p);
  LoadWidened(s.grad, s.grad_type, at, rule.scale(s), n, aligned, g);
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    Load(static_cast<const T*>(s.state[k]) + at, n, aligned, state[k]);
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    T one[kStates > 0 ? kStates : 1];
#pragma unroll
    for (int k = 0; k < kStates; ++k) one[k] = state[k][i];
    rule(p[i], g[i], one);
#pragma unroll
    for (int k = 0; k < kStates; ++k) state[k][i] = one[k];
  }
  Store(p, n, aligned, param);
#pragma unroll
  for (int k = 0; k < kStates; ++k) {
    Store(state[k], n, aligned, static_cast<T*>(s.state[k]) + at);
  }
  if (s.copy) StoreNarrowed(p, s, at, n, aligned);
}

// Rules of constants that are known when the kernel is launched.
template <typename T>
struct KnownScale {
  __device__ __forceinline__ T scale(const Slice& s) const { return static_cast<T>(s.grad_scale); }
};

inline bool Aligned(const Slice& s) {
  uintptr_t bits = reinterpret_cast<uintptr_t>(s.param) | reinterpret_cast<uintptr_t>(s.grad) |
                   reinterpret_cast<uintptr_t>(s.copy);
  for (const void* state : s.state) bits |= reinterpret_cast<uintptr_t>(state);
  return bits % 32 == 0;  // the largest pack: four doubles as gradients of fp32
}

template <typename T, int kStates, typename Rule>
void Elementwise(const char* name, const Slice& s, const Rule& rule) {
  if (s.numel == 0) return;
  constexpr int kVec = 16 / sizeof(T);
  ElementwiseKernel<T, kStates, Rule>
      <<<Blocks((s.numel + kVec - 1) / kVec), kThreads, 0, CurrentStream()>>>(s, rule, Aligned(s));
  CheckLaunch(name);
}

// fn(T{}) with the type of the slice's parameters.
template <typename Fn>
void ForType(const Slice& s, Fn fn) {
  if (s.type == Element::kDouble) return fn(double{});
  fn(float{});
}

}  // namespace lins::device
