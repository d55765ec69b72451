// What the operations share. Not for users.
#pragma once

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "dtensor/ops.h"
#include "mesh/error.h"
#include "placement/redistribution.h"

namespace lins {

inline Shape ToShape(at::IntArrayRef sizes) { return Shape(sizes.begin(), sizes.end()); }
inline std::vector<int64_t> Sizes(const Shape& shape) { return {shape.begin(), shape.end()}; }

inline Layout MakeLayout(Terms terms, Shape shape, const Mesh& mesh) {
  return ValueOrThrow(Layout::Create(std::move(terms), std::move(shape), mesh));
}
inline Layout WithoutPartials(const Layout& layout) {
  Terms terms = layout.terms();
  terms.partials.clear();
  return MakeLayout(std::move(terms), layout.shape(), layout.mesh());
}
// Only sums and averages are pending (or nothing is).
inline bool IsLinear(const Layout& layout) {
  for (const PartialTerm& p : layout.terms().partials) {
    if (p.op != ReduceOp::kSum && p.op != ReduceOp::kAvg) return false;
  }
  return true;
}
// Under O, whether `rank` holds nothing because another one owns the tensor.
inline bool IsElsewhere(const Layout& layout, int64_t rank) {
  const auto& o = layout.terms().owned;
  return o && layout.mesh().IndexInGroup(o->axes, rank) != o->owner;
}

// Runs torch's own operations; what they throw becomes an Error that names operation and operand.
template <typename Fn>
auto Locally(absl::string_view op, const DTensor& x, const Fn& fn) {
  try {
    return fn();
  } catch (const c10::Error& e) {
    throw Error(absl::StrCat(op, " of ", Describe(x.layout()), ": ", e.what_without_backtrace()),
                Error::Kind::kRuntime);
  }
}

void CheckSameMesh(absl::string_view op, const DTensor& a, const DTensor& b);
// The index of dimension `dim`, counted from the end when negative.
int64_t WrapDim(absl::string_view op, const DTensor& x, int64_t dim);
// x reduced over the whole mesh with op: a one-element tensor is given and returned.
void ReduceOverMesh(const at::Tensor& value, ReduceOp op, const LiveMesh& mesh);

}  // namespace lins
