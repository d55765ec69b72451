#include "kernels/elementwise.cuh"

namespace lins::device {
namespace {

template <typename T>
struct SGDRule : KnownScale<T> {
  SGDConstants<T> c;
  __device__ __forceinline__ void operator()(T& p, T g, T*) const {
    SGDStep(c, SGDDecayed(c, g, p), p);
  }
};

template <typename T>
struct MomentumRule : KnownScale<T> {
  SGDConstants<T> c;
  __device__ __forceinline__ void operator()(T& p, T g, T* s) const {
    SGDStep(c, SGDDecayed(c, g, p), p, s[0]);
  }
};

template <typename T>
struct LionRule : KnownScale<T> {
  LionConstants<T> c;
  __device__ __forceinline__ void operator()(T& p, T g, T* s) const { LionStep(c, g, p, s[0]); }
};

template <typename T>
struct MuonRule : KnownScale<T> {
  T decay, factor;
  __device__ __forceinline__ void operator()(T& p, T update, T*) const {
    p = MuonParameter(decay, factor, update, p);
  }
};

// The momentum takes the parameter's place in the pass, and what is made orthogonal the state's,
// so that neither is more than read or written once.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MuonMomentumKernel(const __grid_constant__ Slice s, MuonConstants<T> c, uint16_t* out,
                       bool aligned) {
  constexpr int kVec = 16 / sizeof(T);
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
  if (at >= s.numel) return;
  const int n = s.numel - at < kVec ? static_cast<int>(s.numel - at) : kVec;
  T b[kVec], g[kVec];
  uint16_t rounded[kVec];
  T* const momentum = static_cast<T*>(s.state[0]) + at;
  Load(momentum, n, aligned, b);
  LoadWidened(s.grad, s.grad_type, at, static_cast<T>(s.grad_scale), n, aligned, g);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    rounded[i] = ToBFloat16(static_cast<float>(MuonDirection(c, g[i], b[i])));
  }
  Store(b, n, aligned, momentum);
  Store(rounded, n, aligned, out + at);
}

}  // namespace

void SGD(const SGDOptions& options, int64_t step, const Slice& slice) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    const SGDConstants<T> c = PrepareSGD<T>(options, step);
    if (slice.state[0] == nullptr) {
      SGDRule<T> rule;
      rule.c = c;
      Elementwise<T, 0>("SGD", slice, rule);
    } else {
      MomentumRule<T> rule;
      rule.c = c;
      Elementwise<T, 1>("SGD", slice, rule);
    }
  });
}

void Lion(const LionOptions& options, const Slice& slice) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    LionRule<T> rule;
    rule.c = PrepareLion<T>(options);
    Elementwise<T, 1>("Lion", slice, rule);
  });
}

void MuonMomentum(const MuonConstants<double>& d, const Slice& slice, void* out) {
  if (slice.numel == 0) return;
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kVec = 16 / sizeof(T);
    const MuonConstants<T> c = {static_cast<T>(d.weight), static_cast<T>(d.momentum), d.nesterov};
    Slice addresses = slice;
    addresses.copy = out;
    MuonMomentumKernel<T>
        <<<Blocks((slice.numel + kVec - 1) / kVec), kThreads, 0, CurrentStream()>>>(
            slice, c, static_cast<uint16_t*>(out), Aligned(addresses));
    CheckLaunch("MuonMomentum");
  });
}

void MuonUpdate(double decay, double scale, const Slice& slice) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    MuonRule<T> rule;
    rule.decay = static_cast<T>(decay);
    rule.factor = static_cast<T>(scale);
    Elementwise<T, 0>("MuonUpdate", slice, rule);
  });
}

}  // namespace lins::device
