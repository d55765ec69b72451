// Indices of maxima and minima.
#include <c10/core/GradMode.h>

#include <limits>

#include "dtensor/extremum.h"
#include "dtensor/reduce_dims.h"

namespace lins {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// A rank's best value along the reduced dimensions (kept at size 1), and its place in the whole
// tensor.
struct Best {
  at::Tensor value, index;
};

Best LocalBest(const at::Tensor& local, int64_t dim, bool max) {
  std::vector<int64_t> sizes = local.sizes().vec();
  if (sizes[dim] == 0) {
    sizes[dim] = 1;
    return {at::full(sizes, Identity(local.scalar_type(), max), local.options()),
            at::full(sizes, kNone, local.options().dtype(at::kLong))};
  }
  auto [value, index] = max ? at::max(local, dim, true) : at::min(local, dim, true);
  return {value, index};
}

// The row-major index in the whole tensor of the local tensor's element number `at`.
int64_t GlobalIndex(const Layout& layout, int64_t rank, int64_t at) {
  const Ranges ranges = layout.RangesOf(rank);
  if (layout.IsFlatOrOwned()) return ranges[0].first + at;
  int64_t index = 0, stride = 1;
  for (int64_t d = static_cast<int64_t>(ranges.size()) - 1; d >= 0; --d) {
    const int64_t n = ranges[d].second - ranges[d].first;
    index += (ranges[d].first + at % n) * stride;
    at /= n;
    stride *= layout.shape()[d];
  }
  return index;
}

DTensor ArgExtremum(const char* op, const DTensor& input, bool max, std::optional<int64_t> given,
                    bool keepdim) {
  c10::NoGradGuard no_grad;
  const std::vector<int64_t> dims = NormalDims(op, input, given ? Dims{*given} : Dims{});
  CheckNotEmpty(op, input, dims);
  const DTensor x = WholeIfFlat(Reduced(input), dims);
  const Layout& layout = x.layout();
  const int64_t rank = x.mesh().rank();
  const Layout pending = KeptLayout(layout, dims, max ? ReduceOp::kMax : ReduceOp::kMin);
  const Layout done = WithoutPartials(pending);
  const auto finish = [&](const at::Tensor& index) {
    const DTensor kept = DTensor::FromLocal(index, x.mesh(), done);
    return keepdim ? kept : DropDims(kept, dims);
  };
  if (IsElsewhere(layout, rank)) {
    return finish(at::empty({0}, x.ToLocal().options().dtype(at::kLong)));
  }
  const std::vector<int64_t> shape = Sizes(done.LocalShape(rank));
  const bool flattened = !given || x.dim() == 0;
  const Best best = Locally(op, x, [&] {
    Best b =
        flattened ? LocalBest(x.ToLocal().view(-1), 0, max) : LocalBest(x.ToLocal(), dims[0], max);
    return Best{b.value.view(shape), b.index.view(shape)};
  });
  const bool some = flattened ? x.ToLocal().numel() > 0 : x.ToLocal().size(dims[0]) > 0;
  if (some && flattened) best.index.fill_(GlobalIndex(layout, rank, best.index.item<int64_t>()));
  if (some && !flattened)
    best.index.add_(layout.RangesOf(rank)[layout.IsFlatOrOwned() ? 0 : dims[0]].first);
  if (ReducedAxes(layout, dims).empty()) return finish(best.index);

  // Of the ranks that have the best value, the one with the lowest index. NaN is the best of all.
  const at::Tensor value =
      DTensor::FromLocal(best.value, x.mesh(), pending).Redistribute(done).ToLocal();
  const at::Tensor mine =
      best.value.eq(value).logical_or(best.value.isnan().logical_and(value.isnan()));
  const at::Tensor index = at::where(mine, best.index, at::full_like(best.index, kNone));
  const Layout lowest = KeptLayout(layout, dims, ReduceOp::kMin);
  return finish(DTensor::FromLocal(index, x.mesh(), lowest).Redistribute(done).ToLocal());
}

}  // namespace

DTensor ArgMax(const DTensor& x, std::optional<int64_t> dim, bool keepdim) {
  return ArgExtremum("argmax", x, true, dim, keepdim);
}

DTensor ArgMin(const DTensor& x, std::optional<int64_t> dim, bool keepdim) {
  return ArgExtremum("argmin", x, false, dim, keepdim);
}

}  // namespace lins
