#include "optim/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

// Compiled for several instruction sets, chosen at load time.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LINS_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LINS_SIMD
#endif

namespace lins {
namespace {

template <typename T>
struct Constants {
  T decay, weight1, beta2, weight2, step_size, correction2, eps, sign;
};

template <typename T>
Constants<T> Prepare(const AdamWStep& a) {
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  return {static_cast<T>(1 - a.lr * a.weight_decay), static_cast<T>(1 - a.beta1), static_cast<T>(a.beta2),
          static_cast<T>(1 - a.beta2), static_cast<T>(-(a.lr / correction1)),
          static_cast<T>(std::sqrt(correction2)), static_cast<T>(a.eps), static_cast<T>(a.maximize ? -1 : 1)};
}

// Reads and writes param, exp_avg, exp_avg_sq once; reads grad once.
#define LINS_ADAMW_BODY(T, G)                                                        \
  for (int64_t i = 0; i < n; ++i) {                                                  \
    const T g = c.sign * static_cast<T>(grad[i]);                                    \
    const T m = exp_avg[i] + c.weight1 * (g - exp_avg[i]);                           \
    const T v = exp_avg_sq[i] * c.beta2 + c.weight2 * g * g;                         \
    exp_avg[i] = m;                                                                  \
    exp_avg_sq[i] = v;                                                               \
    const T denom = std::sqrt(v) / c.correction2 + c.eps;                            \
    param[i] = param[i] * c.decay + c.step_size * m / denom;                         \
  }

LINS_SIMD void AdamWLoop(const Constants<float>& c, int64_t n, float* __restrict param,
                         const float* __restrict grad, float* __restrict exp_avg,
                         float* __restrict exp_avg_sq) {
  LINS_ADAMW_BODY(float, float)
}

LINS_SIMD void AdamWLoop(const Constants<double>& c, int64_t n, double* __restrict param,
                         const double* __restrict grad, double* __restrict exp_avg,
                         double* __restrict exp_avg_sq) {
  LINS_ADAMW_BODY(double, double)
}

#undef LINS_ADAMW_BODY

LINS_SIMD double SumSquares(const float* x, int64_t n) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) lanes[j] += static_cast<double>(x[i + j]) * x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(x[i]) * x[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace

void AdamWUpdate(const AdamWStep& args, const at::Tensor& param, const at::Tensor& grad,
                 const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq) {
  const int64_t n = param.numel();
  LINS_CHECK(grad.numel() == n && exp_avg.numel() == n && exp_avg_sq.numel() == n, "lengths differ: ", n, ", ",
             grad.numel(), ", ", exp_avg.numel(), ", ", exp_avg_sq.numel());
  const at::Tensor g = grad.to(param.scalar_type());
  if (param.scalar_type() == at::kFloat) {
    AdamWLoop(Prepare<float>(args), n, param.mutable_data_ptr<float>(), g.const_data_ptr<float>(),
              exp_avg.mutable_data_ptr<float>(), exp_avg_sq.mutable_data_ptr<float>());
  } else if (param.scalar_type() == at::kDouble) {
    AdamWLoop(Prepare<double>(args), n, param.mutable_data_ptr<double>(), g.const_data_ptr<double>(),
              exp_avg.mutable_data_ptr<double>(), exp_avg_sq.mutable_data_ptr<double>());
  } else {
    throw Error(absl::StrCat("AdamW updates fp32 or fp64 values, not ", c10::toString(param.scalar_type())));
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
