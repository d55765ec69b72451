#include "optim/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "mesh/simd.h"

namespace lins {
namespace {

template <typename T>
struct Constants {
  T decay, weight1, beta2, weight2, step_size, correction2, eps, sign;
  bool near;  // exp_avg stays nearer to itself than to the gradient: weight1 counts from there
};

template <typename T>
Constants<T> Prepare(const AdamWStep& a) {
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  const T weight1 = static_cast<T>(1 - a.beta1);
  const bool near = weight1 < T{0.5};
  return {static_cast<T>(1 - a.lr * a.weight_decay),
          near ? weight1 : weight1 - 1,
          static_cast<T>(a.beta2),
          static_cast<T>(1 - a.beta2),
          static_cast<T>(-(a.lr / correction1)),
          static_cast<T>(std::sqrt(correction2)),
          static_cast<T>(a.eps),
          static_cast<T>(a.maximize ? -1 : 1),
          near};
}

// Fused multiply-adds stand where ATen's vectorised lerp and addcmul have them, and the square root
// is ATen's own (of MKL where torch has it, not always rounded to nearest): so results equal
// torch's bit for bit on machines with the instruction. Blocks stay in the first-level cache, so
// main memory is read and written once.
constexpr int64_t kBlock = 4096;

// Moments of a block, from gradients.
#define LINS_MOMENTS(T)                                                              \
  LINS_SIMD void Moments(const Constants<T>& c, int64_t n, const T* __restrict grad, \
                         T* __restrict exp_avg, T* __restrict exp_avg_sq) {          \
    for (int64_t i = 0; i < n; ++i) {                                                \
      const T g = c.sign * grad[i];                                                  \
      exp_avg[i] = std::fma(c.weight1, g - exp_avg[i], c.near ? exp_avg[i] : g);     \
      exp_avg_sq[i] = std::fma(c.weight2 * g, g, exp_avg_sq[i] * c.beta2);           \
    }                                                                                \
  }                                                                                  \
  LINS_SIMD void Parameters(const Constants<T>& c, int64_t n, T* __restrict param,   \
                            const T* __restrict exp_avg, const T* __restrict root) { \
    for (int64_t i = 0; i < n; ++i) {                                                \
      const T denom = root[i] / c.correction2 + c.eps;                               \
      param[i] = param[i] * c.decay + c.step_size * exp_avg[i] / denom;              \
    }                                                                                \
  }
LINS_MOMENTS(float)
LINS_MOMENTS(double)
#undef LINS_MOMENTS

template <typename T>
void Update(const AdamWStep& args, const at::Tensor& param, const at::Tensor& grad,
            const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) {
  const Constants<T> c = Prepare<T>(args);
  at::Tensor root = at::empty({std::min(kBlock, param.numel())}, param.options());
  for (int64_t at = 0; at < param.numel(); at += kBlock) {
    const int64_t n = std::min(kBlock, param.numel() - at);
    Moments(c, n, grad.const_data_ptr<T>() + at, exp_avg.mutable_data_ptr<T>() + at,
            exp_avg_sq.mutable_data_ptr<T>() + at);
    at::Tensor block = root.narrow(0, 0, n);
    at::sqrt_out(block, exp_avg_sq.narrow(0, at, n));
    Parameters(c, n, param.mutable_data_ptr<T>() + at, exp_avg.const_data_ptr<T>() + at,
               block.const_data_ptr<T>());
  }
}

LINS_SIMD double SumSquares(const float* x, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lanes[j] += static_cast<double>(x[i + j]) * x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(x[i]) * x[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

void AdamWUpdate(const AdamWStep& args, const at::Tensor& param, const at::Tensor& grad,
                 const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) {
  const int64_t n = param.numel();
  LINS_CHECK(grad.numel() == n && exp_avg.numel() == n && exp_avg_sq.numel() == n,
             "lengths differ: ", n, ", ", grad.numel(), ", ", exp_avg.numel(), ", ",
             exp_avg_sq.numel());
  const at::Tensor g = grad.to(param.scalar_type());
  if (param.scalar_type() == at::kFloat) {
    Update<float>(args, param, g, exp_avg, exp_avg_sq);
  } else if (param.scalar_type() == at::kDouble) {
    Update<double>(args, param, g, exp_avg, exp_avg_sq);
  } else {
    throw Error(absl::StrCat("AdamW updates fp32 or fp64 values, not ",
                             c10::toString(param.scalar_type())));
  }
}

double PowerSum(const at::Tensor& x, double p) {
  if (x.numel() == 0) return 0;
  if (p == 2 && x.scalar_type() == at::kFloat && x.device().is_cpu()) {
    return SumSquares(x.const_data_ptr<float>(), x.numel());
  }
  const at::Tensor d = x.to(at::kDouble);
  if (p == 2) return (d * d).sum().item<double>();
  if (p == 1) return d.abs().sum().item<double>();
  return d.abs().max().item<double>();
}

}  // namespace lins
