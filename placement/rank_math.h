// Loops over one number a rank, which is where the search spends its time.
#pragma once

#include <cstdint>

namespace lins {

// out[r] *= length of [a_begin, a_end) and [b_begin, b_end) in common.
void MultiplyCommon(int64_t* out, const int64_t* a_begin, const int64_t* a_end,
                    const int64_t* b_begin, const int64_t* b_end, int64_t n);
// out[r] = held[r] - out[r]; returns whether any is not 0.
bool SubtractFrom(const int64_t* held, int64_t* out, int64_t n);
// out[r] = a[r] + b[r]; returns the sum of them.
int64_t Add(const int64_t* a, const int64_t* b, int64_t* out, int64_t n);
// The largest a[r] + b[r].
int64_t MaxSum(const int64_t* a, const int64_t* b, int64_t n);

}  // namespace lins
