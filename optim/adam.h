// Adam and AdamW, one pass.
#pragma once

#include <cstdint>

#include "kernels/adam_math.h"
#include "optim/slice.h"

namespace lins {

// Kingma and Ba, 2015; decoupled weight decay by Loshchilov and Hutter, 2019; in the order of
// operations of torch.optim.AdamW, with `step` counted from 1:
//   g = -grad if maximize;  p *= 1 - lr*weight_decay  (L2: g += weight_decay*p)
//   m += (1-beta1)*(g - m);  v = beta2*v + (1-beta2)*g*g;  x = max(x, v) with amsgrad, else v
//   p -= lr/(1-beta1^step) * m / (sqrt(x)/sqrt(1-beta2^step) + eps)
// States: m, v, and x with amsgrad.
void AdamUpdate(const AdamOptions& options, int64_t step, const Slice& slice);

}  // namespace lins
