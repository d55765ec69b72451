// Reductions along dimensions: the layouts that go with them. Not for users.
//
// A reduction first keeps the reduced dimensions, at size 1 (layout `kept`), and drops them at the
// end (layout `dropped`). Splits of reduced dimensions become pending reductions:
//   S0(x) S1(y) of (4, 6), sum over dimension 0:  kept S1(y) +sum(x) of (1, 6), dropped S0(y)
//   +sum(x) of (6,)
// F can only be reduced over all dimensions (WholeIfFlat sees to that). Under O the owner reduces.
#pragma once

#include "dtensor/ops_internal.h"

namespace lins {

// Sorted, wrapped, each once; all of them when none are given.
std::vector<int64_t> NormalDims(absl::string_view op, const DTensor& x, const Dims& dims);

// Under F, unless all dimensions are reduced, the tensor with its split undone; otherwise itself.
DTensor WholeIfFlat(const DTensor& x, const std::vector<int64_t>& dims);

// An error unless every reduced dimension has elements.
void CheckNotEmpty(absl::string_view op, const DTensor& x, const std::vector<int64_t>& dims);

// The axes that split reduced dimensions.
Axes ReducedAxes(const Layout& x, const std::vector<int64_t>& dims);
Layout KeptLayout(const Layout& x, const std::vector<int64_t>& dims, ReduceOp op);
// Takes the dimensions of size 1 out of a result under KeptLayout.
DTensor DropDims(const DTensor& kept, const std::vector<int64_t>& dims);

// fn(local tensor, dimensions of it) on a rank that has the tensor, brought to the local shape of
// `kept`; on the others of an O layout nothing, in the dtype and with the history of its result.
template <typename Fn>
DTensor ReduceLocally(absl::string_view op, const DTensor& x, const std::vector<int64_t>& dims,
                      const Layout& kept, const Fn& fn) {
  return Locally(op, x, [&] {
    const at::Tensor& local = x.ToLocal();
    const int64_t rank = x.mesh().rank();
    if (IsElsewhere(x.layout(), rank)) {
      return DTensor::FromLocal(fn(local, {0}, true).slice(0, 0, 0), x.mesh(), kept);
    }
    const bool flat = x.layout().terms().flat.has_value();
    const std::vector<int64_t> own = flat ? std::vector<int64_t>{0} : dims;
    return DTensor::FromLocal(fn(local, own, false).view(Sizes(kept.LocalShape(rank))), x.mesh(),
                              kept);
  });
}

}  // namespace lins
