// The kernels that run on a CUDA device: what optim/ and comm/ do on the host, with the same
// arithmetic (the *_math.h of this folder) and, unless said otherwise, the same bits. *.cu are
// compiled where CMake has LINS_CUDA; no_cuda.cc takes their place elsewhere and throws.
//
// All calls are asynchronous: kernels start on the current CUDA stream of the calling thread, of
// the device that is current. Pointers are of device memory. A launch that fails throws.
#pragma once

#include <cstdint>

#include "kernels/adam_math.h"
#include "kernels/codes8.h"
#include "kernels/descent_math.h"

namespace lins::device {

enum class Element { kFloat, kDouble, kBFloat16, kHalf };

// lins::Slice of optim/slice.h, for the device.
struct Slice {
  int64_t numel = 0;
  Element type = Element::kFloat;  // Float or Double
  void* param = nullptr;
  const void* grad = nullptr;
  Element grad_type = Element::kFloat;
  double grad_scale = 1;
  void* state[3] = {};
  void* copy = nullptr;
  Element copy_type = Element::kBFloat16;
  bool stochastic = false;
  uint32_t key = 0;
  int64_t index = 0;
};

// False in a build without CUDA, where everything below throws.
bool Compiled();

// As AdamUpdate with fused.
void Adam(const AdamOptions& options, int64_t step, const Slice& slice);
// For CUDA graphs: step count, learning rate and gradient scale are read on the device when the
// kernel runs. The step count is moved on by one in every run. The device's pow is good to one unit
// in the last place of fp64.
struct AdamOnDevice {
  int64_t step = 0;
  double lr = 1e-3, grad_scale = 1;
};
void AdamCapturable(const AdamOptions& options, AdamOnDevice* on_device, const Slice& slice);

struct Moments8bit {
  uint8_t *exp_avg, *exp_avg_scale, *exp_avg_sq, *exp_avg_sq_scale;
};
// The slice begins a block; key and index are those of the moments, `copy_key` that of the copy.
void Adam8bit(const Adam8bitConstants& constants, const Slice& slice, const Moments8bit& moments,
              uint32_t copy_key);
void Dequantize8(bool is_signed, const uint8_t* codes, const uint8_t* scales, int64_t n,
                 float* out);
void Quantize8(bool is_signed, const float* in, int64_t n, uint8_t* codes, uint8_t* scales);

// state[0] is null without momentum.
void SGD(const SGDOptions& options, int64_t step, const Slice& slice);
void Lion(const LionOptions& options, const Slice& slice);
// out: bf16.
void MuonMomentum(const MuonConstants<double>& constants, const Slice& slice, void* out);
// slice.grad is the update.
void MuonUpdate(double decay, double scale, const Slice& slice);

// The sum of |x|^p in fp64 (p = 1 or 2), or the largest |x| (p = infinity; NaN where one is not
// finite), into one double of device memory. Its order depends on n only, and is not the host's.
// `partial`: PowerSumParts(n) doubles of device memory.
int64_t PowerSumParts(int64_t n);
void PowerSum(const void* x, Element type, int64_t n, double p, double* partial, double* out);

// Sums ChecksumWord over the memory into `sum`, which begins at 0 (kernels/checksum.h).
void Checksum(const void* data, int64_t nbytes, uint64_t* sum);

// out[i] = in[i] op in[stride + i] op ... over k parts, from left to right, as comm/reduce.h does:
// narrow types accumulate in float, are divided by `divisor` and rounded once. `out` may be the
// first part.
enum class Fold { kSum, kProduct, kMin, kMax };
void ReduceInOrder(void* out, const void* in, int64_t k, int64_t stride, int64_t n, Element type,
                   Fold fold, double divisor);

}  // namespace lins::device
