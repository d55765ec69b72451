#include "runtime/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "optim/norm.h"

namespace lins {

GradientNorm::GradientNorm(double p) : p_(p), largest_(std::isinf(p)) {
  if (p != 1 && p != 2 && !(largest_ && p > 0)) {
    throw Error(absl::StrCat("norm type ", p, ": legal are 1, 2 and inf"));
  }
}

void GradientNorm::Add(const at::Tensor& grad, double* numbers) const {
  const double sum = PowerSum(grad, p_);
  if (!std::isfinite(sum)) {
    numbers[1] = 1;
  } else {
    numbers[0] = largest_ ? std::max(numbers[0], sum) : numbers[0] + sum;
  }
}

double GradientNorm::Of(const double* numbers) const {
  if (!Finite(numbers)) return std::nan("");
  return largest_ ? numbers[0] : std::pow(numbers[0], 1 / p_);
}

}  // namespace lins
