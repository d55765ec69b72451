// Blocks of values between the types of parameters and gradients. Fast loops for what is in the
// first-level cache.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/rounding.h"
#include "optim/slice.h"

namespace lins {

// out = scale * in, rounded once to T (float or double); `type` is in's.
void Widen(const void* in, c10::ScalarType type, int64_t n, double scale, float* out);
void Widen(const void* in, c10::ScalarType type, int64_t n, double scale, double* out);

// out = in, rounded to nearest even, or stochastically; `type` is out's: Float, BFloat16 or Half.
// `rounding.index` is that of in[0]. What is not finite stays so; from fp32 to Float nothing is
// rounded.
void Narrow(const float* in, int64_t n, const Rounding& rounding, c10::ScalarType type, void* out);
void Narrow(const double* in, int64_t n, const Rounding& rounding, c10::ScalarType type, void* out);

}  // namespace lins
