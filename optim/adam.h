// Adam and AdamW, one pass.
#pragma once

#include <cstdint>

#include "optim/slice.h"

namespace lins {

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool maximize = false;
  bool amsgrad = false;  // the denominator takes the largest exp_avg_sq so far (Reddi et al., 2018)
  bool decoupled = true;  // weight decay of AdamW; false: L2, added to the gradient, as in Adam
  // Square roots by the processor's instruction, as with fused=True in torch: a third less time
  // where at::sqrt rounds otherwise (optim/sqrt.h), and other last bits there.
  bool fused = false;
};

// Kingma and Ba, 2015; decoupled weight decay by Loshchilov and Hutter, 2019; in the order of
// operations of torch.optim.AdamW, with `step` counted from 1:
//   g = -grad if maximize;  p *= 1 - lr*weight_decay  (L2: g += weight_decay*p)
//   m += (1-beta1)*(g - m);  v = beta2*v + (1-beta2)*g*g;  x = max(x, v) with amsgrad, else v
//   p -= lr/(1-beta1^step) * m / (sqrt(x)/sqrt(1-beta2^step) + eps)
// States: m, v, and x with amsgrad.
void AdamUpdate(const AdamOptions& options, int64_t step, const Slice& slice);

}  // namespace lins
