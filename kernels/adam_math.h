// What Adam and AdamW compute for an element: for kernels of host and device.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/everywhere.h"

namespace lins {

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool maximize = false;
  bool amsgrad = false;  // the denominator takes the largest exp_avg_sq so far (Reddi et al., 2018)
  bool decoupled = true;  // weight decay of AdamW; false: L2, added to the gradient, as in Adam
  // Square roots by the processor's instruction, as with fused=True in torch: less time where
  // at::sqrt rounds otherwise (optim/sqrt.h), and other last bits there. On a device always so.
  bool fused = false;
};

// The options at one step, counted from 1, as the loops need them.
template <typename T>
struct AdamConstants {
  T decay, l2, weight1, beta2, weight2, step_size, correction2, eps;
  bool near;  // exp_avg stays nearer to itself than to the gradient: weight1 counts from there
};

template <typename T>
LINS_EVERYWHERE AdamConstants<T> PrepareAdam(const AdamOptions& a, int64_t step) {
  const double correction1 = 1 - pow(a.beta1, static_cast<double>(step));
  const double correction2 = 1 - pow(a.beta2, static_cast<double>(step));
  const T weight1 = static_cast<T>(1 - a.beta1);
  const bool near = weight1 < T{0.5};
  return {static_cast<T>(a.decoupled ? 1 - a.lr * a.weight_decay : 1),
          static_cast<T>(a.decoupled ? 0 : a.weight_decay),
          near ? weight1 : weight1 - 1,
          static_cast<T>(a.beta2),
          static_cast<T>(1 - a.beta2),
          static_cast<T>(-(a.lr / correction1)),
          static_cast<T>(sqrt(correction2)),
          static_cast<T>(a.eps),
          near};
}

// Fused multiply-adds stand where ATen's vectorised lerp, add and addcmul have them: results equal
// torch's bit for bit on machines with the instruction.
template <typename T>
LINS_EVERYWHERE T AdamDecayed(const AdamConstants<T>& c, T g, T p) {
  return std::fma(p, c.l2, g);
}

template <typename T>
LINS_EVERYWHERE void AdamMoments(const AdamConstants<T>& c, T g, T& m, T& v) {
  m = std::fma(c.weight1, g - m, c.near ? m : g);
  v = std::fma(c.weight2 * g, g, v * c.beta2);
}

template <typename T>
LINS_EVERYWHERE T AdamParameter(const AdamConstants<T>& c, T p, T m, T root) {
  const T denom = root / c.correction2 + c.eps;
  return p * c.decay + c.step_size * m / denom;
}

}  // namespace lins
