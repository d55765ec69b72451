// A mesh: named axes over the ranks 0 .. size-1, slowest link first, in row-major order.
//
//   Mesh mesh = *Mesh::Create({4, 8}, {"node", "gpu"});   // rank = node * 8 + gpu
//   mesh.Groups(*mesh.ParseAxes("gpu:4"))                 // {0,1,2,3}, {4,5,6,7}, {8,...
//
// A sub-axis is a part of an axis: `gpu:4` has size 4 and stride 1 (neighbours), `gpu:2@4` size 2
// and stride 4; its coordinate is (c / stride) mod size where c is the axis' own coordinate.
// Everything here is pure: no process, no communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mesh/scanner.h"

namespace lins {

struct SubAxis {
  int axis = 0;        // index into Mesh::axes()
  int64_t size = 1;    // how many coordinates it has
  int64_t stride = 1;  // distance between neighbours, in coordinates of the axis

  friend bool operator==(const SubAxis&, const SubAxis&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SubAxis& a) {
    return H::combine(std::move(h), a.axis, a.size, a.stride);
  }
};

// A flattened set of sub-axes, major to minor: the last one varies fastest.
using Axes = absl::InlinedVector<SubAxis, 3>;

class Mesh {
 public:
  // One name per dimension; names are identifiers, distinct; sizes are at least 1.
  static absl::StatusOr<Mesh> Create(std::vector<int64_t> shape, std::vector<std::string> axes);

  const std::vector<int64_t>& shape() const { return data_->shape; }
  const std::vector<std::string>& axes() const { return data_->axes; }
  int ndim() const { return static_cast<int>(shape().size()); }
  int64_t size() const { return data_->size; }
  std::string ToString() const;  // Mesh(node=4, gpu=8)

  // Coordinates of a rank in the order of axes(); rank must be in [0, size).
  std::vector<int64_t> Coordinate(int64_t rank) const;

  Axes AllAxes() const;  // whole axes, in mesh order
  absl::StatusOr<SubAxis> WholeAxis(absl::string_view name) const;

  // "gpu:2@4,node" -> sub-axes, validated. "" -> none.
  absl::StatusOr<Axes> ParseAxes(absl::string_view text) const;
  // Reads axes from a longer notation, up to the first character that cannot belong to them.
  absl::StatusOr<Axes> ScanAxes(Scanner& in) const;
  std::string AxesToString(absl::Span<const SubAxis> axes) const;

  // OK when every sub-axis exists, size * stride divides its axis, and no two overlap.
  absl::Status Validate(absl::Span<const SubAxis> axes) const;

  // The number of ranks in one group of `axes`.
  static int64_t GroupSize(absl::Span<const SubAxis> axes);
  // The rank's place within its group.
  int64_t IndexInGroup(absl::Span<const SubAxis> axes, int64_t rank) const;
  // The rank whose sub-axis coordinates are those of `index`, and equal to `rank` in all else.
  int64_t Peer(absl::Span<const SubAxis> axes, int64_t rank, int64_t index) const;
  // The ranks that differ from `rank` in `axes` only, in the order of `axes`.
  std::vector<int64_t> Group(absl::Span<const SubAxis> axes, int64_t rank) const;
  // All groups, ordered by their first rank: they partition the mesh.
  std::vector<std::vector<int64_t>> Groups(absl::Span<const SubAxis> axes) const;

  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.data_ == b.data_ || (a.shape() == b.shape() && a.axes() == b.axes());
  }
  template <typename H>
  friend H AbslHashValue(H h, const Mesh& m) {
    return H::combine(std::move(h), m.shape(), m.axes());
  }

 private:
  struct Data {
    std::vector<int64_t> shape;
    std::vector<std::string> axes;
    std::vector<int64_t> strides;  // rank = sum of coordinate * stride
    int64_t size;
  };
  explicit Mesh(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  int64_t SubCoordinate(const SubAxis& a, int64_t rank) const;

  std::shared_ptr<const Data> data_;
};

// Set operations on sub-axes. Inputs are valid for one mesh; order of the results is mesh order.
// Canonical(a): sorted by axis, then slow to fast, neighbours that touch merged into one.
Axes Canonical(const Mesh& mesh, absl::Span<const SubAxis> axes);
// The same axes, in the same order, without those of one rank.
Axes WithoutSingles(const Axes& axes);
// What remains of `axes` without `remove`; `remove` must lie within `axes`.
Axes Subtract(const Mesh& mesh, absl::Span<const SubAxis> axes, absl::Span<const SubAxis> remove);
// True when every coordinate of `inner` is one of `axes`.
bool Contains(const Mesh& mesh, absl::Span<const SubAxis> axes, absl::Span<const SubAxis> inner);
// The axes of the mesh that are not in `axes`.
Axes Complement(const Mesh& mesh, absl::Span<const SubAxis> axes);
bool Overlap(const SubAxis& a, const SubAxis& b);

}  // namespace lins
