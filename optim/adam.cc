#include "optim/adam.h"

#include <cmath>

#include "mesh/simd.h"
#include "optim/blocks.h"
#include "optim/sqrt.h"

namespace lins {
namespace {

template <typename T>
struct Constants {
  T decay, l2, weight1, beta2, weight2, step_size, correction2, eps;
  bool near;  // exp_avg stays nearer to itself than to the gradient: weight1 counts from there
};

template <typename T>
Constants<T> Prepare(const AdamOptions& a, int64_t step) {
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(step));
  const T weight1 = static_cast<T>(1 - a.beta1);
  const bool near = weight1 < T{0.5};
  return {static_cast<T>(a.decoupled ? 1 - a.lr * a.weight_decay : 1),
          static_cast<T>(a.decoupled ? 0 : a.weight_decay),
          near ? weight1 : weight1 - 1,
          static_cast<T>(a.beta2),
          static_cast<T>(1 - a.beta2),
          static_cast<T>(-(a.lr / correction1)),
          static_cast<T>(std::sqrt(correction2)),
          static_cast<T>(a.eps),
          near};
}

// Fused multiply-adds stand where ATen's vectorised lerp, add and addcmul have them: results equal
// torch's bit for bit on machines with the instruction.
template <typename T>
[[gnu::always_inline]] inline void MomentsOf(const Constants<T>& c, int64_t n,
                                             const T* __restrict grad, T* __restrict m,
                                             T* __restrict v) {
  for (int64_t i = 0; i < n; ++i) {
    const T g = grad[i];
    m[i] = std::fma(c.weight1, g - m[i], c.near ? m[i] : g);
    v[i] = std::fma(c.weight2 * g, g, v[i] * c.beta2);
  }
}

template <typename T>
[[gnu::always_inline]] inline void DecayedOf(const Constants<T>& c, int64_t n,
                                             const T* __restrict grad, const T* __restrict p,
                                             T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::fma(p[i], c.l2, grad[i]);
}

template <typename T>
[[gnu::always_inline]] inline void LargestOf(int64_t n, const T* __restrict v, T* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < v[i] ? v[i] : x[i];
}

template <typename T>
[[gnu::always_inline]] inline void ParametersOf(const Constants<T>& c, int64_t n, T* __restrict p,
                                                const T* __restrict m, const T* __restrict root) {
  for (int64_t i = 0; i < n; ++i) {
    const T denom = root[i] / c.correction2 + c.eps;
    p[i] = p[i] * c.decay + c.step_size * m[i] / denom;
  }
}

// The same from squares, with their roots to nearest.
template <typename T>
[[gnu::always_inline]] inline void FusedParametersOf(const Constants<T>& c, int64_t n,
                                                     T* __restrict p, const T* __restrict m,
                                                     const T* __restrict squares) {
  for (int64_t i = 0; i < n; ++i) {
    const T denom = std::sqrt(squares[i]) / c.correction2 + c.eps;
    p[i] = p[i] * c.decay + c.step_size * m[i] / denom;
  }
}

#define LINS_FOR_TYPE(T)                                                                           \
  LINS_SIMD void Moments(const Constants<T>& c, int64_t n, const T* g, T* m, T* v) {               \
    MomentsOf(c, n, g, m, v);                                                                      \
  }                                                                                                \
  LINS_SIMD void Decayed(const Constants<T>& c, int64_t n, const T* g, const T* p, T* out) {       \
    DecayedOf(c, n, g, p, out);                                                                    \
  }                                                                                                \
  LINS_SIMD void Largest(int64_t n, const T* v, T* x) { LargestOf(n, v, x); }                      \
  LINS_SIMD void FusedParameters(const Constants<T>& c, int64_t n, T* p, const T* m, const T* x) { \
    FusedParametersOf(c, n, p, m, x);                                                              \
  }                                                                                                \
  LINS_SIMD void Parameters(const Constants<T>& c, int64_t n, T* p, const T* m, const T* root) {   \
    ParametersOf(c, n, p, m, root);                                                                \
  }
LINS_FOR_TYPE(float)
LINS_FOR_TYPE(double)
#undef LINS_FOR_TYPE

template <typename T>
void Update(const AdamOptions& options, int64_t step, const Slice& slice) {
  const Constants<T> c = Prepare<T>(options, step);
  const bool fused = options.fused || SqrtOfTorch() == SqrtWay::kInstruction;
  ForEachBlock<T>(slice, [&](const Block<T>& b) {
    alignas(64) T scratch[kBlock];
    const T* grad = b.grad;
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
  ForType(slice, [&](auto zero) { Update<decltype(zero)>(options, step, slice); });
}

}  // namespace lins
