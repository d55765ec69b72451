#include "optim/sqrt.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <vector>

#include "mesh/simd.h"
#include "optim/convert.h"

// Of MKL, where torch was built with it.
extern "C" __attribute__((weak)) void vmsSqrt(int n, const float* x, float* out, long long mode);

namespace lins {
namespace {

// VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE, what torch passes.
constexpr long long kVmlMode = 0x2 | 0x140000 | 0x100;

LINS_SIMD void Instruction(const float* __restrict x, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = std::sqrt(x[i]);
}

template <typename T>
void Aten(const T* x, int64_t n, T* out) {
  const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value);
  at::Tensor result = at::from_blob(out, {n}, options);
  at::sqrt_out(result, at::from_blob(const_cast<T*>(x), {n}, options));
}

SqrtWay Choose() {
  // All exponents, zeros and denormals among them.
  constexpr int kSamples = 8192;
  std::vector<float> x(kSamples), want(kSamples), got(kSamples);
  for (int i = 0; i < kSamples; ++i) {
    x[i] = std::bit_cast<float>(RandomBits(1, i) & 0x7fffffffu);
    if (!std::isfinite(x[i])) x[i] = 0;
  }
  Aten(x.data(), kSamples, want.data());
  Instruction(x.data(), kSamples, got.data());
  if (got == want) return SqrtWay::kInstruction;
  if (vmsSqrt) {
    vmsSqrt(kSamples, x.data(), got.data(), kVmlMode);
    if (got == want) return SqrtWay::kVml;
  }
  return SqrtWay::kAten;
}

}  // namespace

SqrtWay SqrtOfTorch() {
  static const SqrtWay way = Choose();
  return way;
}

void SquareRoots(const float* x, int64_t n, float* out) {
  switch (SqrtOfTorch()) {
    case SqrtWay::kInstruction:
      return Instruction(x, n, out);
    case SqrtWay::kVml:
      return vmsSqrt(static_cast<int>(n), x, out, kVmlMode);
    case SqrtWay::kAten:
      return Aten(x, n, out);
  }
}

void SquareRoots(const double* x, int64_t n, double* out) { Aten(x, n, out); }

}  // namespace lins
