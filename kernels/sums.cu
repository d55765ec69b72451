// Kernels that add up: norms, checksums, contributions of ranks.
#include "kernels/checksum.h"
#include "kernels/elements.cuh"
#include "kernels/launch.h"

namespace lins::device {
namespace {

// The parts of a sum: each block has one, its threads take turns, and then halves are added.
constexpr int64_t kPart = 1 << 15;

enum class Power { kSquares, kMagnitudes, kLargest };

// NaN wins over every number.
__device__ __forceinline__ double Larger(double a, double b) { return isnan(a) || a > b ? a : b; }

template <Power kPower>
__device__ __forceinline__ double Join(double a, double b) {
  return kPower == Power::kLargest ? Larger(a, b) : a + b;
}

template <Power kPower>
__device__ __forceinline__ double OfOne(double x) {
  if constexpr (kPower == Power::kSquares) return x * x;
  if constexpr (kPower == Power::kMagnitudes) return fabs(x);
  return isfinite(x) ? fabs(x) : nan("");
}

// The same tree for every block: the result depends on what the threads hold alone.
template <Power kPower>
__device__ __forceinline__ double OfBlock(double mine) {
  __shared__ double all[kThreads];
  all[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      all[threadIdx.x] = Join<kPower>(all[threadIdx.x], all[threadIdx.x + half]);
    }
  }
  return all[0];  // of thread 0 alone
}

template <Power kPower>
__global__ void __launch_bounds__(kThreads)
    PartsKernel(const void* x, Element type, int64_t n, double* partial, bool aligned) {
  constexpr int kVec = 4;
  const int64_t begin = blockIdx.x * kPart, end = begin + kPart < n ? begin + kPart : n;
  double sum = 0;
  for (int64_t at = begin + threadIdx.x * kVec; at < end; at += kThreads * kVec) {
    double values[kVec];
    const int count = end - at < kVec ? static_cast<int>(end - at) : kVec;
    LoadWidened(x, type, at, 1.0, count, aligned, values);  // 0 where there is nothing
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum = Join<kPower>(sum, OfOne<kPower>(values[i]));
  }
  sum = OfBlock<kPower>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <Power kPower>
__global__ void __launch_bounds__(kThreads)
    TotalKernel(const double* partial, int64_t parts, double* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += kThreads) sum = Join<kPower>(sum, partial[i]);
  sum = OfBlock<kPower>(sum);
  if (threadIdx.x == 0) *out = sum;
}

template <Power kPower>
void PowerSumOf(const void* x, Element type, int64_t n, double* partial, double* out) {
  const int64_t parts = PowerSumParts(n);
  if (parts > 0) {
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 32 == 0;
    PartsKernel<kPower><<<static_cast<unsigned>(parts), kThreads, 0, CurrentStream()>>>(
        x, type, n, partial, aligned);
    CheckLaunch("PowerSum");
  }
  TotalKernel<kPower><<<1, kThreads, 0, CurrentStream()>>>(partial, parts, out);
  CheckLaunch("PowerSum");
}

__global__ void __launch_bounds__(kThreads)
    ChecksumKernel(const unsigned char* data, int64_t nbytes, unsigned long long* sum) {
  const int64_t words = (nbytes + 7) / 8, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  unsigned long long mine = 0;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 8 == 0;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; w < words;
       w += stride) {
    uint64_t word = 0;
    if (aligned && (w + 1) * 8 <= nbytes) {
      word = reinterpret_cast<const uint64_t*>(data)[w];
    } else {
      for (int64_t b = w * 8; b < (w + 1) * 8 && b < nbytes; ++b) {
        word |= static_cast<uint64_t>(data[b]) << (b % 8 * 8);
      }
    }
    mine += ChecksumWord(word, static_cast<uint64_t>(w));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    mine += __shfl_xor_sync(0xffffffffu, mine, offset);
  }
  // Sums modulo 2^64 are the same in any order.
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}

template <typename T>
__device__ __forceinline__ auto Widened(T x) {
  return x;
}
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
__device__ __forceinline__ float Widened(BFloat16 x) { return FromBFloat16(x.bits); }
__device__ __forceinline__ float Widened(Half x) { return FromHalf(x.bits); }
template <typename T>
__device__ __forceinline__ void Narrow(T x, T* out) {
  *out = x;
}
__device__ __forceinline__ void Narrow(float x, BFloat16* out) { out->bits = ToBFloat16(x); }
__device__ __forceinline__ void Narrow(float x, Half* out) { out->bits = ToHalf(x); }

template <typename A>
__device__ __forceinline__ A Folded(Fold fold, A a, A b) {
  switch (fold) {
    case Fold::kSum:
      return a + b;
    case Fold::kProduct:
      return a * b;
    case Fold::kMin:
      return b != b || b < a ? b : a;
    default:
      return b != b || b > a ? b : a;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FoldKernel(T* out, const T* in, int64_t k, int64_t stride, int64_t n, Fold fold,
               double divisor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  auto sum = Widened(in[i]);
  for (int64_t part = 1; part < k; ++part) {
    sum = Folded(fold, sum, Widened(in[part * stride + i]));
  }
  if (divisor != 1) sum = sum / static_cast<decltype(sum)>(static_cast<float>(divisor));
  Narrow(sum, out + i);
}

template <typename T>
void FoldOf(void* out, const void* in, int64_t k, int64_t stride, int64_t n, Fold fold,
            double divisor) {
  FoldKernel<<<Blocks(n), kThreads, 0, CurrentStream()>>>(
      static_cast<T*>(out), static_cast<const T*>(in), k, stride, n, fold, divisor);
  CheckLaunch("ReduceInOrder");
}

}  // namespace

int64_t PowerSumParts(int64_t n) { return (n + kPart - 1) / kPart; }

void PowerSum(const void* x, Element type, int64_t n, double p, double* partial, double* out) {
  if (p == 2) return PowerSumOf<Power::kSquares>(x, type, n, partial, out);
  if (p == 1) return PowerSumOf<Power::kMagnitudes>(x, type, n, partial, out);
  PowerSumOf<Power::kLargest>(x, type, n, partial, out);
}

void Checksum(const void* data, int64_t nbytes, uint64_t* sum) {
  if (nbytes == 0) return;
  const unsigned all = Blocks((nbytes + 7) / 8), blocks = all < 2048 ? all : 2048;
  ChecksumKernel<<<blocks, kThreads, 0, CurrentStream()>>>(
      static_cast<const unsigned char*>(data), nbytes, reinterpret_cast<unsigned long long*>(sum));
  CheckLaunch("Checksum");
}

void ReduceInOrder(void* out, const void* in, int64_t k, int64_t stride, int64_t n, Element type,
                   Fold fold, double divisor) {
  if (n == 0) return;
  switch (type) {
    case Element::kFloat:
      return FoldOf<float>(out, in, k, stride, n, fold, divisor);
    case Element::kDouble:
      return FoldOf<double>(out, in, k, stride, n, fold, divisor);
    case Element::kBFloat16:
      return FoldOf<BFloat16>(out, in, k, stride, n, fold, divisor);
    case Element::kHalf:
      return FoldOf<Half>(out, in, k, stride, n, fold, divisor);
  }
}

}  // namespace lins::device
