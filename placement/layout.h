// A layout: which elements of a global tensor each rank of a mesh holds.
//
//   layout := "R" | term (" " term)*
//   term   := "S" dim "(" axes ")"                    shard dimension dim, axes from major to minor
//           | "F(" axes ["; " offset "/" total] ")"   slots of a padded flat buffer; this tensor is
//           the
//                                                     window of it that begins at offset
//           | "O(" axes "; " owner ")"                whole on one owner, empty elsewhere
//           | "+" op "(" axes ")"                     still to be reduced with op over axes
//
// `S0(gpu,node) +sum(x)`: dimension 0 split over gpu, each piece split again over node, sums
// pending over x, replicated over every other axis. A dimension of n elements split k ways gives
// chunks of ceil(n/k); an empty range is [n, n). A layout is a value: equality, hash, string round
// trip, no process needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "mesh/mesh.h"
#include "mesh/reduce_op.h"

namespace lins {

// What one whole mesh axis does to a tensor: the placement-list view of a layout.
struct Shard {
  int dim;
  friend bool operator==(const Shard&, const Shard&) = default;
};
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};
struct Partial {
  ReduceOp op = ReduceOp::kSum;
  friend bool operator==(const Partial&, const Partial&) = default;
};
using Placement = std::variant<Replicate, Shard, Partial>;
std::string ToString(const Placement& placement);

struct ShardTerm {
  int dim;
  Axes axes;
  friend bool operator==(const ShardTerm&, const ShardTerm&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ShardTerm& t) {
    return H::combine(std::move(h), t.dim, t.axes);
  }
};
struct FlatTerm {
  Axes axes;
  int64_t offset, total;
  friend bool operator==(const FlatTerm&, const FlatTerm&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const FlatTerm& t) {
    return H::combine(std::move(h), t.axes, t.offset, t.total);
  }
};
struct OwnedTerm {
  Axes axes;
  int64_t owner;
  friend bool operator==(const OwnedTerm&, const OwnedTerm&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const OwnedTerm& t) {
    return H::combine(std::move(h), t.axes, t.owner);
  }
};
struct PartialTerm {
  ReduceOp op;
  Axes axes;
  friend bool operator==(const PartialTerm&, const PartialTerm&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PartialTerm& t) {
    return H::combine(std::move(h), t.op, t.axes);
  }
};

// The terms of a layout. `shards` is sorted by dimension; at most one of shards, flat, owned is in
// use.
struct Terms {
  absl::InlinedVector<ShardTerm, 2> shards;
  std::optional<FlatTerm> flat;
  std::optional<OwnedTerm> owned;
  absl::InlinedVector<PartialTerm, 1> partials;
  friend bool operator==(const Terms&, const Terms&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Terms& t) {
    h = H::combine(std::move(h), t.shards, t.partials, t.flat.has_value(), t.owned.has_value());
    if (t.flat) h = H::combine(std::move(h), *t.flat);
    if (t.owned) h = H::combine(std::move(h), *t.owned);
    return h;
  }
};

using Shape = absl::InlinedVector<int64_t, 4>;
using Range = std::pair<int64_t, int64_t>;  // [first, second)
using Ranges = absl::InlinedVector<Range, 4>;

// The elements of a sub-range: chunk `index` of `k` of [begin, end); [end, end) when none are left.
Range Chunk(Range range, int64_t k, int64_t index);

class Layout {
 public:
  static absl::StatusOr<Layout> Parse(absl::string_view notation, Shape shape, const Mesh& mesh);
  // One placement per mesh axis: [Shard(0), Shard(0)] on (node, gpu) is S0(node,gpu).
  static absl::StatusOr<Layout> FromPlacements(const std::vector<Placement>& placements,
                                               Shape shape, const Mesh& mesh);
  // Checks the terms against shape and mesh and brings them to their normal form.
  static absl::StatusOr<Layout> Create(Terms terms, Shape shape, const Mesh& mesh);
  static Layout Replicated(Shape shape, const Mesh& mesh);

  const Shape& shape() const { return shape_; }
  const Mesh& mesh() const { return mesh_; }
  const Terms& terms() const { return terms_; }
  int64_t numel() const;

  // One placement per mesh axis. An error for F, O, parts of axes, and orders other than the
  // mesh's.
  absl::StatusOr<std::vector<Placement>> Placements() const;

  // Per dimension the range the rank holds; under F and O one range in the tensor's flattened
  // elements.
  Ranges RangesOf(int64_t rank) const;
  // Shape of the rank's local tensor: under F (k), under O the whole shape or (0).
  Shape LocalShape(int64_t rank) const;
  int64_t LocalNumel(int64_t rank) const;
  // The largest LocalNumel over all ranks.
  int64_t MaxLocalNumel() const;

  bool IsPartial() const { return !terms_.partials.empty(); }
  bool IsFlatOrOwned() const { return terms_.flat.has_value() || terms_.owned.has_value(); }
  Axes SplitAxes() const;    // axes that S, F or O divide over, in the order of the terms
  Axes PartialAxes() const;  // axes with pending reductions
  Layout WithTerms(Terms terms) const;  // same shape and mesh; the terms must be valid

  std::string ToString() const;
  friend bool operator==(const Layout& a, const Layout& b) {
    return a.shape_ == b.shape_ && a.terms_ == b.terms_ && a.mesh_ == b.mesh_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Layout& l) {
    return H::combine(std::move(h), l.shape_, l.terms_, l.mesh_);
  }

 private:
  Layout(Terms terms, Shape shape, Mesh mesh)
      : terms_(std::move(terms)), shape_(std::move(shape)), mesh_(std::move(mesh)) {}

  Terms terms_;
  Shape shape_;
  Mesh mesh_;
};

int64_t Numel(const Shape& shape);
std::string ShapeToString(const Shape& shape);  // (10, 4)
std::string Describe(const Layout& layout);     // S0(gpu) of (10, 4) on Mesh(node=4, gpu=8)

}  // namespace lins
