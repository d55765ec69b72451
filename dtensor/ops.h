// Arithmetic on distributed tensors. Results equal those of torch on the whole tensors, type
// promotion included; errors of torch's own come as lins::Error.
//
//   DTensor loss = Mean(Mul(x, x));        // x under S0(gpu): loss is +sum(gpu), nothing
//   communicated Equal(Add(loss, 1), y)                 // reduces first, then compares: the same
//   answer everywhere
//
// Every rank of the mesh calls the same operations in the same order: they communicate where the
// layouts demand it, and only then. The rules, for which docs/dtensor.md has one row each:
//   - operands of one layout: local. Otherwise one goes to the other's layout, whichever receives
//   less.
//   - scaling a pending sum or average is local, and so is adding two that are pending alike;
//     everything else reduces pending values first.
//   - a sum over a split dimension stays pending (+sum over its axes), as do maxima and minima.
//   - shape operations keep the layout or are refused: they never communicate.
#pragma once

#include <c10/core/Scalar.h>

#include <optional>
#include <variant>
#include <vector>

#include "dtensor/dtensor.h"

namespace lins {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kEq, kNe, kLt, kLe, kGt, kGe };
using Operand = std::variant<DTensor, c10::Scalar>;

// --- elementwise (elementwise.cc). Shapes broadcast; at least one operand is a DTensor.
DTensor Binary(BinaryOp op, const Operand& a, const Operand& b);
inline DTensor Add(const Operand& a, const Operand& b) { return Binary(BinaryOp::kAdd, a, b); }
inline DTensor Sub(const Operand& a, const Operand& b) { return Binary(BinaryOp::kSub, a, b); }
inline DTensor Mul(const Operand& a, const Operand& b) { return Binary(BinaryOp::kMul, a, b); }
inline DTensor Div(const Operand& a, const Operand& b) { return Binary(BinaryOp::kDiv, a, b); }
// a = op(a, b) in a's own memory, for kAdd to kDiv; b goes to a's layout. Refused where a's layout
// or dtype would not survive: an addition to a pending value, unless b is pending alike.
void BinaryInPlace(BinaryOp op, const DTensor& a, const Operand& b);
DTensor Neg(const DTensor& x);
DTensor Abs(const DTensor& x);
DTensor Clone(const DTensor& x);
DTensor Detach(const DTensor& x);
DTensor To(const DTensor& x, at::ScalarType dtype);
// The same values without pending reductions. Collective over their axes.
DTensor Reduced(const DTensor& x);

// --- comparison of whole tensors. Collective over the mesh, the same answer on every rank.
bool Equal(const DTensor& a, const DTensor& b);  // false for unlike shapes
bool AllClose(const DTensor& a, const DTensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);
// The only element of a tensor, on every rank.
c10::Scalar Item(const DTensor& x);

// --- reductions (reductions.cc). No dims: over all of them. Over no elements: 0 for sums, nan for
// means, an error for the others.
using Dims = std::vector<int64_t>;
DTensor Sum(const DTensor& x, const Dims& dims = {}, bool keepdim = false);
DTensor Mean(const DTensor& x, const Dims& dims = {}, bool keepdim = false);
DTensor Max(const DTensor& x, const Dims& dims = {}, bool keepdim = false);
DTensor Min(const DTensor& x, const Dims& dims = {}, bool keepdim = false);
// p is 1, 2 or infinity. Pending values are reduced first, the 2-norm at the end too.
DTensor Norm(const DTensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);
// Index of the first maximum, along dim or in the flattened tensor. Never pending.
DTensor ArgMax(const DTensor& x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);
DTensor ArgMin(const DTensor& x, std::optional<int64_t> dim = std::nullopt, bool keepdim = false);

// --- matrices (matmul.cc). (m, k) @ (k, n): rows of a and columns of b stay split, a split k
// leaves a sum pending. Operands that fit no local rule are redistributed with the least bytes.
DTensor MatMul(const DTensor& a, const DTensor& b);

// --- shapes (shape_ops.cc). No communication: an Error where no layout describes the result.
// Results share the local tensor where torch's would.
DTensor Reshape(const DTensor& x, const std::vector<int64_t>& shape);  // one size may be -1
DTensor Transpose(const DTensor& x, int64_t dim0, int64_t dim1);
struct IndexNone {};      // a new dimension of size 1
struct IndexEllipsis {};  // as many whole dimensions as are left
struct IndexSlice {
  std::optional<int64_t> start, stop;
  int64_t step = 1;
};
using IndexItem = std::variant<int64_t, IndexSlice, IndexNone, IndexEllipsis>;
DTensor Index(const DTensor& x, const std::vector<IndexItem>& items);

}  // namespace lins
