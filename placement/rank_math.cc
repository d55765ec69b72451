#include "placement/rank_math.h"

#include <algorithm>

#include "mesh/simd.h"

namespace lins {

LINS_SIMD void MultiplyCommon(int64_t* __restrict__ out, const int64_t* a_begin,
                              const int64_t* a_end, const int64_t* b_begin, const int64_t* b_end,
                              int64_t n) {
  for (int64_t r = 0; r < n; ++r) {
    const int64_t begin = a_begin[r] > b_begin[r] ? a_begin[r] : b_begin[r];
    const int64_t end = a_end[r] < b_end[r] ? a_end[r] : b_end[r];
    out[r] *= end > begin ? end - begin : 0;
  }
}

LINS_SIMD bool SubtractFrom(const int64_t* held, int64_t* __restrict__ out, int64_t n) {
  int64_t any = 0;
  for (int64_t r = 0; r < n; ++r) {
    out[r] = held[r] - out[r];
    any |= out[r];
  }
  return any != 0;
}

LINS_SIMD int64_t Add(const int64_t* a, const int64_t* b, int64_t* __restrict__ out, int64_t n) {
  int64_t total = 0;
  for (int64_t r = 0; r < n; ++r) {
    out[r] = a[r] + b[r];
    total += out[r];
  }
  return total;
}

LINS_SIMD int64_t MaxSum(const int64_t* a, const int64_t* b, int64_t n) {
  int64_t most = 0;
  for (int64_t r = 0; r < n; ++r) {
    const int64_t sum = a[r] + b[r];
    most = sum > most ? sum : most;
  }
  return most;
}

}  // namespace lins
