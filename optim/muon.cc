#include "optim/muon.h"

#include <ATen/ATen.h>

#include <cmath>

#include "kernels/descent_math.h"
#include "mesh/simd.h"
#include "optim/blocks.h"
#include "optim/on_device.h"

namespace lins {
namespace {

template <typename T>
[[gnu::always_inline]] inline void MomentumOf(const MuonConstants<T>& c, int64_t n,
                                              const T* __restrict g, T* __restrict b,
                                              T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = MuonDirection(c, g[i], b[i]);
}

template <typename T>
[[gnu::always_inline]] inline void ApplyTo(int64_t n, T decay, T scale, const T* __restrict update,
                                           T* __restrict p) {
  for (int64_t i = 0; i < n; ++i) p[i] = MuonParameter(decay, scale, update[i], p[i]);
}

#define LINS_FOR_TYPE(T)                                                                    \
  LINS_SIMD void Momentum(const MuonConstants<T>& c, int64_t n, const T* g, T* b, T* out) { \
    MomentumOf(c, n, g, b, out);                                                            \
  }                                                                                         \
  LINS_SIMD void Apply(int64_t n, T decay, T scale, const T* update, T* p) {                \
    ApplyTo(n, decay, scale, update, p);                                                    \
  }
LINS_FOR_TYPE(float)
LINS_FOR_TYPE(double)
#undef LINS_FOR_TYPE

template <typename T>
MuonConstants<T> Prepare(const MuonOptions& o) {
  return {static_cast<T>(1 - o.momentum), static_cast<T>(o.momentum), o.nesterov};
}

template <typename T>
void MomentumFor(const MuonOptions& o, const Slice& slice, c10::BFloat16* out) {
  const MuonConstants<T> c = Prepare<T>(o);
  ForEachBlock<T>(slice, [&](const Block<T>& b) {
    T values[kBlock];
    Momentum(c, b.numel, b.grad, b.state[0], values);
    Narrow(values, b.numel, {}, c10::ScalarType::BFloat16, out + b.at);
  });
}

template <typename T>
void UpdateFor(double decay, double scale, const Slice& slice) {
  ForEachBlock<T>(slice, [&](const Block<T>& b) {
    Apply(b.numel, static_cast<T>(decay), static_cast<T>(scale), b.grad, b.param);
  });
}

}  // namespace

AdamOptions AdamWOf(const MuonOptions& o) {
  return {.lr = o.lr,
          .beta1 = o.adamw_beta1,
          .beta2 = o.adamw_beta2,
          .eps = o.adamw_eps,
          .weight_decay = o.weight_decay,
          .maximize = o.maximize};
}

void MuonMomentum(const MuonOptions& options, const Slice& given, c10::BFloat16* out) {
  Slice slice = Uphill(given, options.maximize);
  slice.copy = nullptr;  // parameters are not written yet
  if (slice.on_device) return device::MuonMomentum(Prepare<double>(options), OnDevice(slice), out);
  ForType(slice, [&](auto zero) { MomentumFor<decltype(zero)>(options, slice, out); });
}

at::Tensor NewtonSchulz(const at::Tensor& x, const MuonOptions& o) {
  const auto [a, b, c] = o.ns_coefficients;
  const bool tall = x.size(0) > x.size(1);
  at::Tensor y = x.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (tall) y = y.t();
  y.div_(y.norm().clamp(o.eps));
  for (int64_t i = 0; i < o.ns_steps; ++i) {
    const at::Tensor gram = at::matmul(y, y.t());
    const at::Tensor update = at::addmm(gram, gram, gram, b, c);
    y = at::addmm(y, update, y, a);
  }
  return tall ? y.t() : y;
}

void MuonUpdate(const MuonOptions& o, int64_t rows, int64_t cols, const Slice& given,
                const c10::BFloat16* update) {
  const double ratio =
      o.adjust == MuonOptions::Adjust::kOriginal
          ? std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)))
          : 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
  // The update takes the gradient's place in the pass.
  Slice slice = given;
  slice.grad = update;
  slice.grad_type = c10::ScalarType::BFloat16;
  slice.grad_scale = 1;
  const double decay = 1 - o.lr * o.weight_decay, scale = -o.lr * ratio;
  if (slice.on_device) return device::MuonUpdate(decay, scale, OnDevice(slice));
  ForType(slice, [&](auto zero) { UpdateFor<decltype(zero)>(decay, scale, slice); });
}

}  // namespace lins
