#include "dtensor/reduce_dims.h"

#include <algorithm>
#include <numeric>

namespace lins {
namespace {

bool IsIn(const std::vector<int64_t>& dims, int64_t dim) {
  return std::binary_search(dims.begin(), dims.end(), dim);
}

}  // namespace

std::vector<int64_t> NormalDims(absl::string_view op, const DTensor& x, const Dims& dims) {
  std::vector<int64_t> out;
  if (dims.empty()) {
    out.resize(x.dim());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  for (int64_t d : dims) {
    d = WrapDim(op, x, d);
    if (x.dim() > 0) out.push_back(d);  // a scalar has a dimension 0 by courtesy
  }
  std::sort(out.begin(), out.end());
  if (const auto twice = std::adjacent_find(out.begin(), out.end()); twice != out.end()) {
    throw Error(absl::StrCat(op, ": dimension ", *twice, " is given twice"));
  }
  return out;
}

DTensor WholeIfFlat(const DTensor& x, const std::vector<int64_t>& dims) {
  if (!x.layout().terms().flat || static_cast<int64_t>(dims.size()) == x.dim()) return x;
  Terms terms = x.layout().terms();
  terms.flat.reset();
  return x.Redistribute(MakeLayout(std::move(terms), x.shape(), x.mesh()));
}

void CheckNotEmpty(absl::string_view op, const DTensor& x, const std::vector<int64_t>& dims) {
  for (int64_t d : dims) {
    if (x.shape()[d] == 0) {
      throw Error(absl::StrCat(op, " over no elements: dimension ", d, " of shape ",
                               ShapeToString(x.shape()), " is empty"),
                  Error::Kind::kRuntime);
    }
  }
}

Axes ReducedAxes(const Layout& x, const std::vector<int64_t>& dims) {
  if (x.terms().flat) return x.terms().flat->axes;
  Axes out;
  for (const ShardTerm& t : x.terms().shards) {
    if (IsIn(dims, t.dim)) out.insert(out.end(), t.axes.begin(), t.axes.end());
  }
  return out;
}

Layout KeptLayout(const Layout& x, const std::vector<int64_t>& dims, ReduceOp op) {
  Shape shape = x.shape();
  for (int64_t d : dims) shape[d] = 1;
  Terms terms;
  terms.owned = x.terms().owned;
  terms.partials = x.terms().partials;
  for (const ShardTerm& t : x.terms().shards) {
    if (!IsIn(dims, t.dim)) terms.shards.push_back(t);
  }
  terms.partials.push_back({op, ReducedAxes(x, dims)});
  return MakeLayout(std::move(terms), std::move(shape), x.mesh());
}

DTensor DropDims(const DTensor& kept, const std::vector<int64_t>& dims) {
  Shape shape;
  std::vector<int> moved(kept.dim());
  for (int64_t d = 0; d < kept.dim(); ++d) {
    moved[d] = static_cast<int>(shape.size());
    if (!IsIn(dims, d)) shape.push_back(kept.shape()[d]);
  }
  Terms terms = kept.layout().terms();
  for (ShardTerm& t : terms.shards) t.dim = moved[t.dim];
  const Layout layout = MakeLayout(std::move(terms), std::move(shape), kept.mesh());
  return DTensor::FromLocal(kept.ToLocal().view(Sizes(layout.LocalShape(kept.mesh().rank()))),
                            kept.mesh(), layout);
}

}  // namespace lins
