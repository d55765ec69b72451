// Adafactor: second moments of matrices as an outer product of row and column sums. The loops over
// one rank's part; the sums over ranks are the caller's.
#pragma once

#include <cstdint>

#include "optim/slice.h"

namespace lins {

struct AdafactorOptions {
  double lr = 1e-2, beta2_decay = -0.8;
  double eps1 = 0;  // added under roots; 0: the type's machine epsilon
  double eps2 = 1e-3, d = 1, weight_decay = 0;
  bool maximize = false;
};

// A slice as elements [begin, begin + slice.numel) of a tensor [..., rows, cols], row by row.
struct MatrixPart {
  int64_t rows, cols, begin;
};

// Shazeer and Stern, 2018, as torch.optim.Adafactor computes it:
//   w = step^beta2_decay;  R += w*(mean of g*g over a row - R), C alike over a column
//   V = R C / max(mean of R, eps1);  u = g / sqrt(max(V, eps1^2))
//   p -= max(eps2, rms(p)) * min(lr, 1/sqrt(step)) / max(1, rms(u)/d) * u
// and V += w*(g*g - V) by element where a parameter has less than two dimensions.

// Adds g*g to the sums of its row and its column; both count over all matrices of the tensor.
void AddSquares(const Slice& slice, const MatrixPart& part, double* row_sums, double* col_sums);

// The sum of u*u. `row`: R / max(mean of R, eps1); `col`: C, both for all matrices. `least`
// is eps1^2.
double FactoredUpdateSquares(const Slice& slice, const MatrixPart& part, const double* row,
                             const double* col, double least);
// p = p*decay + scale*u
void FactoredUpdate(const Slice& slice, const MatrixPart& part, const double* row,
                    const double* col, double least, double decay, double scale);

// The same with state[0] = V, which the first of the two moves by `weight`.
double ElementwiseUpdateSquares(const Slice& slice, double weight, double least);
void ElementwiseUpdate(const Slice& slice, double least, double decay, double scale);

}  // namespace lins
