// Square roots with the bits of at::sqrt, which on some machines are not those of the processor's
// instruction: torch's builds with MKL take its vector library, good to one unit in the last place.
#pragma once

#include <cstdint>

namespace lins {

// How at::sqrt rounds fp32 on this machine, found by comparing a million values, once.
enum class SqrtWay {
  kInstruction,  // to nearest: std::sqrt
  kNewton,       // as two steps of Newton's from the processor's estimate give it
  kVml,          // as MKL's vector library, called directly
  kAten,         // in a way of its own: at::sqrt has to be called
};
SqrtWay SqrtOfTorch();

// out[i] = sqrt(x[i]); at most 4096 elements pay off per call.
void SquareRoots(const float* x, int64_t n, float* out);
void SquareRoots(const double* x, int64_t n, double* out);

}  // namespace lins
