// The p-norm of gradients that lie on many ranks: each adds up its shards, then all do.
#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/reduce_op.h"

namespace lins {

class GradientNorm {
 public:
  // p: 1, 2 or infinity; throws for others.
  explicit GradientNorm(double p);

  // Two numbers that ranks reduce with op(), from {0, 0}: the power sum (p = infinity: the largest)
  // of what is finite, and more than 0 where something is not.
  static constexpr int kNumbers = 2;
  void Add(const at::Tensor& grad, double* numbers) const;
  ReduceOp op() const { return largest_ ? ReduceOp::kMax : ReduceOp::kSum; }
  static bool Finite(const double* numbers) { return numbers[1] == 0; }
  // NaN unless all is finite.
  double Of(const double* numbers) const;

 private:
  double p_;
  bool largest_;
};

}  // namespace lins
