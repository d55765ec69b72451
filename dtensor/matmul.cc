// (m, k) @ (k, n) by the local rule: the rows of a may be split over one set of axes, the columns
// of b over another, and k of both over a third, which leaves a sum pending.
#include "dtensor/gradient.h"
#include "dtensor/ops_internal.h"

namespace lins {
namespace {

Axes AxesOf(const Layout& layout, int dim) {
  for (const ShardTerm& t : layout.terms().shards) {
    if (t.dim == dim) return t.axes;
  }
  return {};
}

Layout Matrix(const Axes& rows, const Axes& columns, const Shape& shape, const Mesh& mesh,
              const Axes& pending = {}) {
  Terms terms;
  if (!rows.empty()) terms.shards.push_back({0, rows});
  if (!columns.empty()) terms.shards.push_back({1, columns});
  if (!pending.empty()) terms.partials.push_back({ReduceOp::kSum, pending});
  return MakeLayout(std::move(terms), shape, mesh);
}

struct Rule {
  Axes m, k, n;
};

// Among the rules that keep what the operands have, the one that costs the fewest bytes; then the
// one that splits the work most.
Rule ChooseRule(const DTensor& a, const DTensor& b) {
  const Mesh& mesh = a.mesh();
  const Axes m = AxesOf(a.layout(), 0), n = AxesOf(b.layout(), 1);
  const Axes ka = AxesOf(a.layout(), 1), kb = AxesOf(b.layout(), 0);
  Rule best;
  std::pair<int64_t, int64_t> least(std::numeric_limits<int64_t>::max(), 0);
  for (const Axes& rows : {m, Axes()}) {
    for (const Axes& columns : {n, Axes()}) {
      for (const Axes& inner : {ka, kb, Axes()}) {
        Axes all = rows;
        all.insert(all.end(), columns.begin(), columns.end());
        all.insert(all.end(), inner.begin(), inner.end());
        if (!mesh.Validate(all).ok()) continue;
        const auto bytes = [&](const DTensor& x, const Axes& r, const Axes& c) {
          return ValueOrThrow(CachedPlan(x.layout(), Matrix(r, c, x.shape(), mesh),
                                         x.ToLocal().element_size()))
              ->recv_bytes;
        };
        const std::pair cost(bytes(a, rows, inner) + bytes(b, inner, columns),
                             -Mesh::GroupSize(all));
        if (cost < least) {
          least = cost;
          best = {rows, inner, columns};
        }
      }
    }
  }
  return best;
}

// x under Matrix(rows, columns); its gradient comes as a sum over `others`, which split the other
// operand.
at::Tensor Fit(const DTensor& x, const Axes& rows, const Axes& columns, const Axes& others) {
  const DTensor y = x.Redistribute(Matrix(rows, columns, x.shape(), x.mesh()));
  return WithGradientLayout(y.ToLocal(), y.layout(),
                            Matrix(rows, columns, x.shape(), x.mesh(), others), x.mesh());
}

}  // namespace

DTensor MatMul(const DTensor& a, const DTensor& b) {
  CheckSameMesh("matmul", a, b);
  if (a.dim() != 2 || b.dim() != 2 || a.shape()[1] != b.shape()[0]) {
    throw Error(absl::StrCat("matmul: shapes ", ShapeToString(a.shape()), " and ",
                             ShapeToString(b.shape()), " are not (m, k) and (k, n)"));
  }
  const Rule rule = ChooseRule(a, b);
  const at::Tensor x = Fit(a, rule.m, rule.k, rule.n), y = Fit(b, rule.k, rule.n, rule.m);
  const Layout out = Matrix(rule.m, rule.n, {a.shape()[0], b.shape()[1]}, a.mesh(), rule.k);
  return Locally("matmul", a, [&] { return DTensor::FromLocal(at::matmul(x, y), a.mesh(), out); });
}

}  // namespace lins
