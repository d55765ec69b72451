#include "optim/sgd.h"

#include <cmath>

#include "mesh/error.h"
#include "mesh/simd.h"
#include "optim/blocks.h"

namespace lins {
namespace {

template <typename T>
struct SGDConstants {
  T lr, momentum, weight, decay;
  bool first, nesterov;
};

// b is null without momentum. Fused multiply-adds stand where ATen's add with alpha has them.
template <typename T>
[[gnu::always_inline]] inline void Descend(const SGDConstants<T>& c, int64_t n,
                                           const T* __restrict grad, T* __restrict p,
                                           T* __restrict b) {
  if (!b) {
    for (int64_t i = 0; i < n; ++i) {
      const T g = c.decay != 0 ? std::fma(c.decay, p[i], grad[i]) : grad[i];
      p[i] = std::fma(c.lr, g, p[i]);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const T g = c.decay != 0 ? std::fma(c.decay, p[i], grad[i]) : grad[i];
    b[i] = c.first ? g : std::fma(c.weight, g, b[i] * c.momentum);
    p[i] = std::fma(c.lr, c.nesterov ? std::fma(c.momentum, b[i], g) : b[i], p[i]);
  }
}

template <typename T>
struct LionConstants {
  T lr, beta1, weight1, beta2, weight2, decay;
};

template <typename T>
[[gnu::always_inline]] inline void FollowSigns(const LionConstants<T>& c, int64_t n,
                                               const T* __restrict grad, T* __restrict p,
                                               T* __restrict m) {
  for (int64_t i = 0; i < n; ++i) {
    const T u = m[i] * c.beta1 + grad[i] * c.weight1;
    const T sign = static_cast<T>(u > 0) - static_cast<T>(u < 0);
    p[i] = p[i] * c.decay - c.lr * sign;
    m[i] = m[i] * c.beta2 + grad[i] * c.weight2;
  }
}

#define LINS_FOR_TYPE(T)                                                                \
  LINS_SIMD void Update(const SGDConstants<T>& c, int64_t n, const T* g, T* p, T* b) {  \
    Descend(c, n, g, p, b);                                                             \
  }                                                                                     \
  LINS_SIMD void Update(const LionConstants<T>& c, int64_t n, const T* g, T* p, T* m) { \
    FollowSigns(c, n, g, p, m);                                                         \
  }
LINS_FOR_TYPE(float)
LINS_FOR_TYPE(double)
#undef LINS_FOR_TYPE

template <typename T>
void SGDFor(const SGDOptions& o, int64_t step, const Slice& slice) {
  const SGDConstants<T> c = {static_cast<T>(-o.lr),
                             static_cast<T>(o.momentum),
                             static_cast<T>(1 - o.dampening),
                             static_cast<T>(o.weight_decay),
                             step == 1,
                             o.nesterov};
  ForEachBlock<T>(slice,
                  [&](const Block<T>& b) { Update(c, b.numel, b.grad, b.param, b.state[0]); });
}

template <typename T>
void LionFor(const LionOptions& o, const Slice& slice) {
  const LionConstants<T> c = {
      static_cast<T>(o.lr),        static_cast<T>(o.beta1),
      static_cast<T>(1 - o.beta1), static_cast<T>(o.beta2),
      static_cast<T>(1 - o.beta2), static_cast<T>(1 - o.lr * o.weight_decay)};
  ForEachBlock<T>(slice,
                  [&](const Block<T>& b) { Update(c, b.numel, b.grad, b.param, b.state[0]); });
}

}  // namespace

void SGDUpdate(const SGDOptions& options, int64_t step, const Slice& given) {
  const Slice slice = Uphill(given, options.maximize);
  LINS_CHECK((slice.state[0] != nullptr) == (options.momentum != 0), "momentum ", options.momentum);
  ForType(slice, [&](auto zero) { SGDFor<decltype(zero)>(options, step, slice); });
}

void LionUpdate(const LionOptions& options, const Slice& given) {
  const Slice slice = Uphill(given, options.maximize);
  ForType(slice, [&](auto zero) { LionFor<decltype(zero)>(options, slice); });
}

}  // namespace lins
