#include "optim/sgd.h"

#include "kernels/descent_math.h"
#include "mesh/error.h"
#include "mesh/simd.h"
#include "optim/blocks.h"
#include "optim/on_device.h"

namespace lins {
namespace {

// b is null without momentum.
template <typename T>
[[gnu::always_inline]] inline void Descend(const SGDConstants<T>& c, int64_t n,
                                           const T* __restrict grad, T* __restrict p,
                                           T* __restrict b) {
  if (!b) {
    for (int64_t i = 0; i < n; ++i) SGDStep(c, SGDDecayed(c, grad[i], p[i]), p[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) SGDStep(c, SGDDecayed(c, grad[i], p[i]), p[i], b[i]);
}

template <typename T>
[[gnu::always_inline]] inline void FollowSigns(const LionConstants<T>& c, int64_t n,
                                               const T* __restrict grad, T* __restrict p,
                                               T* __restrict m) {
  for (int64_t i = 0; i < n; ++i) LionStep(c, grad[i], p[i], m[i]);
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

// The pass over one state with constants c.
template <typename T, typename Constants>
void Pass(const Constants& c, const Slice& slice) {
  ForEachBlock<T>(slice,
                  [&](const Block<T>& b) { Update(c, b.numel, b.grad, b.param, b.state[0]); });
}

}  // namespace

void SGDUpdate(const SGDOptions& options, int64_t step, const Slice& given) {
  const Slice slice = Uphill(given, options.maximize);
  LINS_CHECK((slice.state[0] != nullptr) == (options.momentum != 0), "momentum ", options.momentum);
  if (slice.on_device) return device::SGD(options, step, OnDevice(slice));
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    Pass<T>(PrepareSGD<T>(options, step), slice);
  });
}

void LionUpdate(const LionOptions& options, const Slice& given) {
  const Slice slice = Uphill(given, options.maximize);
  if (slice.on_device) return device::Lion(options, OnDevice(slice));
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    Pass<T>(PrepareLion<T>(options), slice);
  });
}

}  // namespace lins
