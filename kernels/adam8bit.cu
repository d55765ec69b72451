#include "kernels/elements.cuh"
#include "kernels/launch.h"

namespace lins::device {
namespace {

// A warp has a block of 256 numbers, eight neighbours in every thread.
constexpr int kWarp = 32, kVec = kQuantBlock / kWarp, kWarps = kThreads / kWarp;

struct Lane {
  int64_t block, at;  // at: of the thread's first number
  int n;              // numbers of the thread, 0 to kVec
};

__device__ __forceinline__ Lane LaneOf(int64_t numel) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t at = block * kQuantBlock + threadIdx.x % kWarp * kVec;
  const int64_t left = numel - at;
  return {block, at, left <= 0 ? 0 : left < kVec ? static_cast<int>(left) : kVec};
}

__device__ __forceinline__ uint32_t LargestOfWarp(uint32_t bits) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, bits, offset);
    bits = bits < other ? other : bits;
  }
  return bits;
}

__global__ void __launch_bounds__(kThreads)
    Adam8bitKernel(const __grid_constant__ Slice s, const Adam8bitConstants c, const Moments8bit x,
                   uint32_t copy_key, bool aligned) {
  const Lane lane = LaneOf(s.numel);
  if (lane.block * kQuantBlock >= s.numel) return;  // whole warps
  float p[kVec], g[kVec], m[kVec], v[kVec];
  uint8_t m8[kVec], v8[kVec];
  float* const param = static_cast<float*>(s.param) + lane.at;
  Load(param, lane.n, aligned, p);
  LoadWidened(s.grad, s.grad_type, lane.at, static_cast<float>(s.grad_scale), lane.n, aligned, g);
  Load<uint8_t>(x.exp_avg + lane.at, lane.n, aligned, m8);
  Load<uint8_t>(x.exp_avg_sq + lane.at, lane.n, aligned, v8);
  const float m_scale = codes8::ScaleOf(x.exp_avg_scale[lane.block]);
  const float v_scale = codes8::ScaleOf(x.exp_avg_sq_scale[lane.block]);
  uint32_t m_largest = 0, v_largest = 0;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (c.l2 != 0) g[i] = Adam8bitDecayed(c, g[i], p[i]);
    m[i] = Adam8bitMoment(c, g[i], codes8::SignedValue(m8[i], m_scale));
    v[i] = Adam8bitSquare(c, g[i], codes8::UnsignedValue(v8[i], v_scale));
    if (i < lane.n) {
      m_largest = max(m_largest, std::bit_cast<uint32_t>(std::fabs(m[i])));
      v_largest = max(v_largest, std::bit_cast<uint32_t>(v[i]));
    }
    p[i] = Adam8bitParameter(c, p[i], m[i], v[i]);
  }
  // All threads of the warp have read the scales before one writes them.
  const uint8_t new_m = codes8::ScaleFor(LargestOfWarp(m_largest));
  const uint8_t new_v = codes8::ScaleFor(LargestOfWarp(v_largest));
  if (threadIdx.x % kWarp == 0) {
    x.exp_avg_scale[lane.block] = new_m;
    x.exp_avg_sq_scale[lane.block] = new_v;
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const uint32_t noise = RandomBits(s.key, static_cast<uint32_t>(s.index + lane.at + i));
    m8[i] = static_cast<uint8_t>(codes8::MomentCode(m[i], codes8::InverseOf(new_m), noise));
    v8[i] = static_cast<uint8_t>(codes8::SquareCode(v[i], codes8::InverseOf(new_v), noise));
  }
  Store(p, lane.n, aligned, param);
  Store(m8, lane.n, aligned, x.exp_avg + lane.at);
  Store(v8, lane.n, aligned, x.exp_avg_sq + lane.at);
  if (s.copy) {
    Slice copy = s;
    copy.key = copy_key;
    StoreNarrowed(p, copy, lane.at, lane.n, aligned);
  }
}

__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(bool is_signed, const uint8_t* codes, const uint8_t* scales, int64_t n,
                     float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float scale = codes8::ScaleOf(scales[i / kQuantBlock]);
  out[i] =
      is_signed ? codes8::SignedValue(codes[i], scale) : codes8::UnsignedValue(codes[i], scale);
}

__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(bool is_signed, const float* in, int64_t n, uint8_t* codes, uint8_t* scales) {
  const Lane lane = LaneOf(n);
  if (lane.block * kQuantBlock >= n) return;
  float x[kVec];
  Load(in + lane.at, lane.n, false, x);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (i < lane.n) largest = max(largest, std::bit_cast<uint32_t>(std::fabs(x[i])));
  }
  const uint8_t scale = codes8::ScaleFor(LargestOfWarp(largest));
  if (threadIdx.x % kWarp == 0) scales[lane.block] = scale;
  const float inverse = codes8::InverseOf(scale);
  for (int i = 0; i < lane.n; ++i) {
    codes[lane.at + i] = static_cast<uint8_t>(
        is_signed ? codes8::SignedCode(x[i], inverse, codes8::kHalf)
                  : codes8::UnsignedCode(x[i] > 0 ? x[i] : 0.0f, inverse, codes8::kHalf));
  }
}

unsigned QuantBlocks(int64_t n) {
  const int64_t blocks = (n + kQuantBlock - 1) / kQuantBlock;
  return static_cast<unsigned>((blocks + kWarps - 1) / kWarps);
}

bool AlignedTo(size_t bytes, std::initializer_list<const void*> addresses) {
  uintptr_t bits = 0;
  for (const void* a : addresses) bits |= reinterpret_cast<uintptr_t>(a);
  return bits % bytes == 0;
}

}  // namespace

void Adam8bit(const Adam8bitConstants& c, const Slice& s, const Moments8bit& x, uint32_t copy_key) {
  if (s.numel == 0) return;
  // Eight fp32 numbers, or fp64 gradients, are one pack; codes are at multiples of eight bytes.
  const bool aligned =
      AlignedTo(s.grad_type == Element::kDouble ? 64 : 32, {s.param, s.grad, s.copy}) &&
      AlignedTo(8, {x.exp_avg, x.exp_avg_sq});
  Adam8bitKernel<<<QuantBlocks(s.numel), kThreads, 0, CurrentStream()>>>(s, c, x, copy_key,
                                                                         aligned);
  CheckLaunch("Adam8bit");
}

void Dequantize8(bool is_signed, const uint8_t* codes, const uint8_t* scales, int64_t n,
                 float* out) {
  if (n == 0) return;
  DequantizeKernel<<<Blocks(n), kThreads, 0, CurrentStream()>>>(is_signed, codes, scales, n, out);
  CheckLaunch("Dequantize8");
}

void Quantize8(bool is_signed, const float* in, int64_t n, uint8_t* codes, uint8_t* scales) {
  if (n == 0) return;
  QuantizeKernel<<<QuantBlocks(n), kThreads, 0, CurrentStream()>>>(is_signed, in, n, codes, scales);
  CheckLaunch("Quantize8");
}

}  // namespace lins::device
