#include "optim/norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mesh/simd.h"
#include "optim/convert.h"
#include "optim/on_device.h"

namespace lins {
namespace {

constexpr int64_t kChunk = 2048;        // widened at a time
constexpr int64_t kPart = 32 * kChunk;  // summed by itself
constexpr int kLanes = 16;

double Total(const double* lanes) {
  double sum = 0;
  for (int j = 0; j < kLanes; ++j) sum += lanes[j];
  return sum;
}

template <typename T>
[[gnu::always_inline]] inline double SquaresOf(const T* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(x[i + j]) * x[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += static_cast<double>(x[i]) * x[i];
  return Total(lanes);
}

template <typename T>
[[gnu::always_inline]] inline double MagnitudesOf(const T* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += std::fabs(static_cast<double>(x[i + j]));
  }
  for (int j = 0; i < n; ++i, ++j) lanes[j] += std::fabs(static_cast<double>(x[i]));
  return Total(lanes);
}

template <typename T>
[[gnu::always_inline]] inline double LargestOf(const T* x, int64_t n) {
  T largest = 0, bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T a = std::fabs(x[i]);
    largest = largest < a ? a : largest;
    bad += a * 0;  // NaN where a is not finite
  }
  return static_cast<double>(largest) + static_cast<double>(bad);
}

#define LINS_FOR_TYPE(T)                                                            \
  LINS_SIMD double Squares(const T* x, int64_t n) { return SquaresOf(x, n); }       \
  LINS_SIMD double Magnitudes(const T* x, int64_t n) { return MagnitudesOf(x, n); } \
  LINS_SIMD double Largest(const T* x, int64_t n) { return LargestOf(x, n); }
LINS_FOR_TYPE(float)
LINS_FOR_TYPE(double)
#undef LINS_FOR_TYPE

template <typename T>
double OfKind(const T* x, int64_t n, double p) {
  return p == 2 ? Squares(x, n) : p == 1 ? Magnitudes(x, n) : Largest(x, n);
}

// NaN wins over every number.
double Larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double PowerSumOfPart(const void* x, c10::ScalarType type, int64_t n, double p) {
  if (type == c10::ScalarType::Float) return OfKind(static_cast<const float*>(x), n, p);
  if (type == c10::ScalarType::Double) return OfKind(static_cast<const double*>(x), n, p);
  float widened[kChunk];
  double sum = 0;
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t count = std::min(kChunk, n - at);
    Widen(static_cast<const uint16_t*>(x) + at, type, count, 1, widened);
    const double part = OfKind(widened, count, p);
    sum = std::isinf(p) ? Larger(sum, part) : sum + part;
  }
  return sum;
}

}  // namespace

double PowerSum(const void* x, c10::ScalarType type, int64_t n, double p) {
  const int64_t parts = (n + kPart - 1) / kPart;
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  std::vector<double> sums(parts);
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      sums[i] = PowerSumOfPart(static_cast<const char*>(x) + i * kPart * size, type,
                               std::min(kPart, n - i * kPart), p);
    }
  });
  double sum = 0;
  for (double part : sums) sum = std::isinf(p) ? Larger(sum, part) : sum + part;
  return sum;
}

double PowerSum(const at::Tensor& x, double p) {
  if (x.numel() == 0) return 0;
  const bool known = at::isFloatingType(x.scalar_type()) && c10::elementSize(x.scalar_type()) > 1;
  if (known && x.device().is_cpu()) {
    return PowerSum(x.const_data_ptr(), x.scalar_type(), x.numel(), p);
  }
  if (known && x.device().is_cuda() && device::Compiled()) {
    const at::Tensor parts =
        at::empty({device::PowerSumParts(x.numel()) + 1}, x.options().dtype(at::kDouble));
    auto* partial = parts.mutable_data_ptr<double>();
    device::PowerSum(x.const_data_ptr(), KnownElement(x.scalar_type()), x.numel(), p, partial + 1,
                     partial);
    return parts[0].item<double>();
  }
  const at::Tensor d = x.to(at::kDouble);
  if (p == 2) return (d * d).sum().item<double>();
  if (p == 1) return d.abs().sum().item<double>();
  return d.abs().max().item<double>();
}

}  // namespace lins
