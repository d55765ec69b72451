#include "optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "mesh/simd.h"
#include "optim/convert.h"

namespace lins {
namespace {

constexpr int64_t kChunk = 1024;

// fn(T* param, const T* grad, T* state, n, row, col): pieces of at most kChunk elements within one
// row; `row` counts over all matrices, `col` is the first element's column plus those of earlier
// matrices. Afterwards param goes to slice.copy.
template <typename T, typename Fn>
void ForEachPiece(const Slice& s, const MatrixPart& part, bool writes, Fn fn) {
  const auto grad_size = static_cast<int64_t>(c10::elementSize(s.grad_type));
  const auto copy_size = static_cast<int64_t>(c10::elementSize(s.copy_type));
  T grad[kChunk];
  for (int64_t at = 0; at < s.numel;) {
    const int64_t element = part.begin + at;
    const int64_t row = element / part.cols, col = element % part.cols;
    const int64_t n = std::min({kChunk, part.cols - col, s.numel - at});
    Widen(static_cast<const char*>(s.grad) + at * grad_size, s.grad_type, n, s.grad_scale, grad);
    T* param = static_cast<T*>(s.param) + at;
    fn(param, grad, s.state[0] ? static_cast<T*>(s.state[0]) + at : nullptr, n, row,
       row / part.rows * part.cols + col);
    if (writes && s.copy) {
      Rounding rounding = s.rounding;
      rounding.index += at;
      Narrow(param, n, rounding, s.copy_type, static_cast<char*>(s.copy) + at * copy_size);
    }
    at += n;
  }
}

// u = g / sqrt(max(row*col, least)), in fp64 throughout: two roundings less than in fp32.
inline double Step(double g, double variance, double least) {
  return g / std::sqrt(std::max(variance, least));
}

}  // namespace

void AddSquares(const Slice& slice, const MatrixPart& part, double* row_sums, double* col_sums) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    ForEachPiece<T>(slice, part, false,
                    [&](T*, const T* g, T*, int64_t n, int64_t row, int64_t col) {
                      double sum = 0;
                      for (int64_t i = 0; i < n; ++i) {
                        const double square = static_cast<double>(g[i]) * g[i];
                        sum += square;
                        col_sums[col + i] += square;
                      }
                      row_sums[row] += sum;
                    });
  });
}

double FactoredUpdateSquares(const Slice& slice, const MatrixPart& part, const double* row,
                             const double* col, double least) {
  double sum = 0;
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    ForEachPiece<T>(slice, part, false, [&](T*, const T* g, T*, int64_t n, int64_t r, int64_t c) {
      for (int64_t i = 0; i < n; ++i) {
        const double u = Step(g[i], row[r] * col[c + i], least);
        sum += u * u;
      }
    });
  });
  return sum;
}

void FactoredUpdate(const Slice& slice, const MatrixPart& part, const double* row,
                    const double* col, double least, double decay, double scale) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    ForEachPiece<T>(slice, part, true, [&](T* p, const T* g, T*, int64_t n, int64_t r, int64_t c) {
      for (int64_t i = 0; i < n; ++i) {
        const double u = Step(g[i], row[r] * col[c + i], least);
        p[i] = static_cast<T>(p[i] * decay + scale * u);
      }
    });
  });
}

double ElementwiseUpdateSquares(const Slice& slice, double weight, double least) {
  double sum = 0;
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    const MatrixPart row = {1, std::max<int64_t>(slice.numel, 1), 0};
    ForEachPiece<T>(slice, row, false, [&](T*, const T* g, T* v, int64_t n, int64_t, int64_t) {
      for (int64_t i = 0; i < n; ++i) {
        const double square = static_cast<double>(g[i]) * g[i];
        v[i] = static_cast<T>(v[i] + weight * (square - v[i]));
        const double u = Step(g[i], v[i], least);
        sum += u * u;
      }
    });
  });
  return sum;
}

void ElementwiseUpdate(const Slice& slice, double least, double decay, double scale) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    const MatrixPart row = {1, std::max<int64_t>(slice.numel, 1), 0};
    ForEachPiece<T>(slice, row, true, [&](T* p, const T* g, T* v, int64_t n, int64_t, int64_t) {
      for (int64_t i = 0; i < n; ++i) {
        p[i] = static_cast<T>(p[i] * decay + scale * Step(g[i], v[i], least));
      }
    });
  });
}

}  // namespace lins
