// AdamW with moments of 8 bits: the states of Adam at a quarter of their size.
//
// Values are stored as small floating-point numbers that share a power of two per block of 256, as
// in the OCP Microscaling formats: exp_avg with a sign, 4 bits of exponent and 3 of mantissa,
// exp_avg_sq with 5 and 3. The scale is that of the block's largest value, so exp_avg reaches down
// to 2^-15 of it and exp_avg_sq to 2^-31; a positive exp_avg_sq is never stored as 0, which would
// blow up the update. Block-wise 8-bit states: Dettmers et al., "8-bit optimizers via block-wise
// quantization", 2022. Rounding is stochastic, so that a change of 0.1 % per step, which is what
// beta2 = 0.999 makes of exp_avg_sq, is not rounded away every time; the relative error of one
// rounding is at most 1/8, and zero on average.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "optim/adam.h"
#include "optim/slice.h"

namespace lins {

// Of n elements: n codes and ceil(n / kQuantBlock) scales each. A scale is the exponent byte of an
// fp32 number. Zeros mean zeros.
using Moments8bit = device::Moments8bit;

// As AdamUpdate, for Float parameters and without amsgrad. The slice begins a block. Its `rounding`
// gives key and index for the moments as well.
void Adam8bitUpdate(const AdamOptions& options, int64_t step, const Slice& slice,
                    const Moments8bit& moments);

// Values of codes, and codes of values, rounded to nearest. What Dequantize returns is kept exactly
// by Quantize, also where blocks begin elsewhere, unless a value lies below the range of its block.
enum class Code { kSigned, kUnsigned };  // exp_avg, exp_avg_sq
void Dequantize(Code code, const uint8_t* codes, const uint8_t* scales, int64_t n, float* out,
                bool on_device = false);
void Quantize(Code code, const float* in, int64_t n, uint8_t* codes, uint8_t* scales,
              bool on_device = false);

}  // namespace lins
