// Loops over flat shards in memory order. Tensors are contiguous, 1-D, of equal length, on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lins {

struct AdamWStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool maximize = false;
  int64_t step = 1;  // of this update, from 1
};

// Decoupled weight decay (Loshchilov and Hutter, 2019), one pass, in the order of operations of
// torch.optim.AdamW:
//   p *= 1 - lr*weight_decay;  m += (1-beta1)*(g - m);  v = beta2*v + (1-beta2)*g*g
//   p -= lr/(1-beta1^step) * m / (sqrt(v)/sqrt(1-beta2^step) + eps)
// param, exp_avg, exp_avg_sq are fp32 or fp64, of one dtype; grad is of any floating dtype.
void AdamWUpdate(const AdamWStep& args, const at::Tensor& param, const at::Tensor& grad,
                 const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq);

// Sum of |x|^p in fp64 (p = 1 or 2), or the largest |x| (p = infinity), 0 over no elements. The
// result is not finite when any element is not.
double PowerSum(const at::Tensor& x, double p);

}  // namespace lins
