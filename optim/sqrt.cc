#include "optim/sqrt.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

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

// What Newton leaves out: numbers whose squares or reciprocals lose bits, and what is none.
void Rest(const float* x, int64_t n, float* out) {
  if (vmsSqrt) return vmsSqrt(static_cast<int>(n), x, out, kVmlMode);
  Aten(x, n, out);
}

#ifdef __x86_64__
#define LINS_AVX2 __attribute__((target("avx2")))
#define LINS_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl")))

bool HasNewton() { return __builtin_cpu_supports("avx2"); }

// x * r, r being an estimate of 1/sqrt(x) that is good to 12 bits, made better twice (P. Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990), without fused
// multiply-adds. For eight lanes and for sixteen.
#define LINS_IMPROVED(TARGET, V)                         \
  TARGET inline V Improved(V x, V r, V half) {           \
    const V s = x * r, h = half * r, e = half - s * h;   \
    const V better = s + s * e;                          \
    return better + (x - better * better) * (h + h * e); \
  }
LINS_IMPROVED(LINS_AVX2, __m256)
LINS_IMPROVED(LINS_AVX512, __m512)
#undef LINS_IMPROVED

LINS_AVX2 inline __m256 NewtonOf(__m256 x) {
  return Improved(x, _mm256_rsqrt_ps(x), _mm256_set1_ps(0.5f));
}
LINS_AVX512 inline __m512 NewtonOf(__m512 x) {
  // There is no such estimate of sixteen numbers, only another one of 14 bits.
  const __m256 low = _mm256_rsqrt_ps(_mm512_castps512_ps256(x));
  const __m256 high = _mm256_rsqrt_ps(_mm512_extractf32x8_ps(x, 1));
  return Improved(x, _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1),
                  _mm512_set1_ps(0.5f));
}

constexpr float kLeast = 0x1p-100f, kMost = 0x1p100f;  // that Newton serves, beside 0

// Returns how many it has done: all but what does not fill sixteen lanes.
LINS_AVX512 int64_t NewtonBySixteen(const float* x, int64_t n, float* out) {
  constexpr int64_t kLanes = 16;
  const __m512 least = _mm512_set1_ps(kLeast), most = _mm512_set1_ps(kMost);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __mmask16 is_zero = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_EQ_OQ);
    const unsigned odd = _mm512_cmp_ps_mask(v, least, _CMP_NGE_UQ) |  // NaN is odd too
                         _mm512_cmp_ps_mask(v, most, _CMP_NLE_UQ);
    if ((odd & ~static_cast<unsigned>(is_zero)) != 0) [[unlikely]] {
      Rest(x + i, kLanes, out + i);
    } else {
      _mm512_storeu_ps(out + i, _mm512_mask_blend_ps(is_zero, NewtonOf(v), v));  // zeros stay
    }
  }
  return i;
}

LINS_AVX2 void NewtonByEight(const float* x, int64_t n, float* out) {
  constexpr int64_t kLanes = 8;
  const __m256 zero = _mm256_setzero_ps();
  const __m256 least = _mm256_set1_ps(kLeast), most = _mm256_set1_ps(kMost);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = std::min(kLanes, n - i);
    alignas(32) float few[kLanes] = {};
    if (count < kLanes) std::copy_n(x + i, count, few);
    const __m256 v = count < kLanes ? _mm256_load_ps(few) : _mm256_loadu_ps(x + i);
    const __m256 is_zero = _mm256_cmp_ps(v, zero, _CMP_EQ_OQ);
    const __m256 odd =
        _mm256_or_ps(_mm256_cmp_ps(v, least, _CMP_NGE_UQ), _mm256_cmp_ps(v, most, _CMP_NLE_UQ));
    const __m256 rest = _mm256_andnot_ps(is_zero, odd);
    if (!_mm256_testz_ps(rest, rest)) {
      Rest(x + i, count, out + i);
      continue;
    }
    const __m256 root = _mm256_blendv_ps(NewtonOf(v), v, is_zero);
    if (count == kLanes) {
      _mm256_storeu_ps(out + i, root);
    } else {
      _mm256_store_ps(few, root);
      std::copy_n(few, count, out + i);
    }
  }
}

void Newton(const float* x, int64_t n, float* out) {
  static const bool wide = __builtin_cpu_supports("avx512f") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const int64_t done = wide ? NewtonBySixteen(x, n, out) : 0;
  NewtonByEight(x + done, n - done, out + done);
}
#else
bool HasNewton() { return false; }
void Newton(const float*, int64_t, float*) {}
#endif

SqrtWay Choose() {
  // All exponents, zeros and denormals among them.
  constexpr int kSamples = 1 << 20;
  std::vector<float> x(kSamples), want(kSamples), got(kSamples);
  for (int i = 0; i < kSamples; ++i) {
    x[i] = std::bit_cast<float>(RandomBits(1, i) & 0x7fffffffu);
    if (!std::isfinite(x[i])) x[i] = 0;
  }
  Aten(x.data(), kSamples, want.data());
  Instruction(x.data(), kSamples, got.data());
  if (got == want) return SqrtWay::kInstruction;
  if (HasNewton()) {
    Newton(x.data(), kSamples, got.data());
    if (got == want) return SqrtWay::kNewton;
  }
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
    case SqrtWay::kNewton:
      return Newton(x, n, out);
    case SqrtWay::kVml:
      return vmsSqrt(static_cast<int>(n), x, out, kVmlMode);
    case SqrtWay::kAten:
      return Aten(x, n, out);
  }
}

void SquareRoots(const double* x, int64_t n, double* out) { Aten(x, n, out); }

}  // namespace lins
