#include "optim/adam.h"

#include <cmath>

#include "mesh/simd.h"
#include "optim/blocks.h"
#include "optim/on_device.h"
#include "optim/sqrt.h"

namespace lins {
namespace {

template <typename T>
[[gnu::always_inline]] inline void MomentsOf(const AdamConstants<T>& c, int64_t n,
                                             const T* __restrict grad, T* __restrict m,
                                             T* __restrict v) {
  for (int64_t i = 0; i < n; ++i) AdamMoments(c, grad[i], m[i], v[i]);
}

template <typename T>
[[gnu::always_inline]] inline void DecayedOf(const AdamConstants<T>& c, int64_t n,
                                             const T* __restrict grad, const T* __restrict p,
                                             T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = AdamDecayed(c, grad[i], p[i]);
}

template <typename T>
[[gnu::always_inline]] inline void LargestOf(int64_t n, const T* __restrict v, T* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < v[i] ? v[i] : x[i];
}

template <typename T>
[[gnu::always_inline]] inline void ParametersOf(const AdamConstants<T>& c, int64_t n,
                                                T* __restrict p, const T* __restrict m,
                                                const T* __restrict root) {
  for (int64_t i = 0; i < n; ++i) p[i] = AdamParameter(c, p[i], m[i], root[i]);
}

// The same from squares, with their roots to nearest.
template <typename T>
[[gnu::always_inline]] inline void FusedParametersOf(const AdamConstants<T>& c, int64_t n,
                                                     T* __restrict p, const T* __restrict m,
                                                     const T* __restrict squares) {
  for (int64_t i = 0; i < n; ++i) p[i] = AdamParameter(c, p[i], m[i], std::sqrt(squares[i]));
}

// All of it in one loop, where squares are v and nothing is decayed into the gradient.
template <typename T>
[[gnu::always_inline]] inline void FusedOf(const AdamConstants<T>& c, int64_t n,
                                           const T* __restrict grad, T* __restrict p,
                                           T* __restrict m, T* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    AdamMoments(c, grad[i], m[i], v[i]);
    p[i] = AdamParameter(c, p[i], m[i], std::sqrt(v[i]));
  }
}

#define LINS_FOR_TYPE(T)                                                                         \
  LINS_SIMD void Moments(const AdamConstants<T>& c, int64_t n, const T* g, T* m, T* v) {         \
    MomentsOf(c, n, g, m, v);                                                                    \
  }                                                                                              \
  LINS_SIMD void Decayed(const AdamConstants<T>& c, int64_t n, const T* g, const T* p, T* out) { \
    DecayedOf(c, n, g, p, out);                                                                  \
  }                                                                                              \
  LINS_SIMD void Largest(int64_t n, const T* v, T* x) { LargestOf(n, v, x); }                    \
  LINS_SIMD void FusedParameters(const AdamConstants<T>& c, int64_t n, T* p, const T* m,         \
                                 const T* x) {                                                   \
    FusedParametersOf(c, n, p, m, x);                                                            \
  }                                                                                              \
  LINS_SIMD void Fused(const AdamConstants<T>& c, int64_t n, const T* g, T* p, T* m, T* v) {     \
    FusedOf(c, n, g, p, m, v);                                                                   \
  }                                                                                              \
  LINS_SIMD void Parameters(const AdamConstants<T>& c, int64_t n, T* p, const T* m,              \
                            const T* root) {                                                     \
    ParametersOf(c, n, p, m, root);                                                              \
  }
LINS_FOR_TYPE(float)
LINS_FOR_TYPE(double)
#undef LINS_FOR_TYPE

template <typename T>
void Update(const AdamOptions& options, int64_t step, const Slice& slice) {
  const AdamConstants<T> c = PrepareAdam<T>(options, step);
  const bool fused = options.fused || SqrtOfTorch() == SqrtWay::kInstruction;
  ForEachBlock<T>(slice, [&](const Block<T>& b) {
    alignas(64) T scratch[kBlock];
    const T* grad = b.grad;
    if (fused && c.l2 == 0 && !options.amsgrad) {
      return Fused(c, b.numel, grad, b.param, b.state[0], b.state[1]);
    }
    if (c.l2 != 0) {
      Decayed(c, b.numel, grad, b.param, scratch);
      grad = scratch;
    }
    Moments(c, b.numel, grad, b.state[0], b.state[1]);
    const T* largest = b.state[1];
    if (options.amsgrad) {
      Largest(b.numel, b.state[1], b.state[2]);
      largest = b.state[2];
    }
    if (fused) return FusedParameters(c, b.numel, b.param, b.state[0], largest);
    SquareRoots(largest, b.numel, scratch);
    Parameters(c, b.numel, b.param, b.state[0], scratch);
  });
}

}  // namespace

void AdamUpdate(const AdamOptions& options, int64_t step, const Slice& given) {
  const Slice slice = Uphill(given, options.maximize);
  if (slice.on_device) return device::Adam(options, step, OnDevice(slice));
  ForType(slice, [&](auto zero) { Update<decltype(zero)>(options, step, slice); });
}

}  // namespace lins
