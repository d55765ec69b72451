// Stochastic gradient descent with momentum, and Lion: one pass each.
#pragma once

#include <cstdint>

#include "kernels/descent_math.h"
#include "optim/slice.h"

namespace lins {

// In the order of operations of torch.optim.SGD, with `step` counted from 1:
//   g = -grad if maximize;  g += weight_decay*p
//   with momentum:  b = g at step 1, else momentum*b + (1-dampening)*g;  g = b
//     (Nesterov: g += momentum*b)
//   p -= lr*g
// State: b, where momentum is not 0.
void SGDUpdate(const SGDOptions& options, int64_t step, const Slice& slice);

// Chen et al., "Symbolic discovery of optimization algorithms", 2023:
//   g = -grad if maximize;  p *= 1 - lr*weight_decay
//   p -= lr * sign(beta1*m + (1-beta1)*g);  m = beta2*m + (1-beta2)*g
// State: m.
void LionUpdate(const LionOptions& options, const Slice& slice);

}  // namespace lins
