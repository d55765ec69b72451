#include "tests/proofs/random_case.h"

#include <algorithm>
#include <random>

#include "mesh/error.h"
#include "placement/reachable.h"

namespace lins::testing {
namespace {

class Generator {
 public:
  explicit Generator(uint64_t seed) : engine_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }

  // A divisor of n.
  int64_t Divisor(int64_t n) {
    std::vector<int64_t> all;
    for (int64_t d = 1; d <= n; ++d) {
      if (n % d == 0) all.push_back(d);
    }
    return all[Below(static_cast<int64_t>(all.size()))];
  }

  Mesh AMesh(int64_t ranks) {
    const int64_t axes = 1 + Below(4);
    std::vector<int64_t> shape;
    for (int64_t i = 1; i < axes; ++i) {
      shape.push_back(Divisor(ranks));
      ranks /= shape.back();
    }
    shape.push_back(ranks);
    std::shuffle(shape.begin(), shape.end(), engine_);
    std::vector<std::string> names = {"a", "b", "c", "d"};
    names.resize(axes);
    return ValueOrThrow(Mesh::Create(shape, names));
  }

  Shape AShape() {
    Shape shape(Below(5));
    const int64_t most = shape.size() < 3 ? 12 : shape.size() < 4 ? 7 : 5;
    for (int64_t& n : shape) n = OneIn(12) ? 0 : 1 + Below(most);
    return shape;
  }

  Layout ALayout(const Shape& shape, const Mesh& mesh, const std::vector<ReduceOp>& ops) {
    Terms terms;
    Axes split;
    for (const SubAxis& axis : Parts(mesh)) {
      const int64_t use = Below(5);
      if (use < 3) {
        split.push_back(axis);
      } else if (use == 3) {
        terms.partials.push_back({ops[Below(static_cast<int64_t>(ops.size()))], {axis}});
      }
    }
    std::shuffle(split.begin(), split.end(), engine_);
    const int64_t form = Below(shape.empty() ? 2 : 6);
    if (split.empty()) {
    } else if (form == 0) {
      terms.owned = OwnedTerm{split, Below(Mesh::GroupSize(split))};
    } else if (form == 1) {
      const int64_t k = Mesh::GroupSize(split), offset = OneIn(2) ? 0 : Below(9);
      const int64_t used = offset + Numel(shape) + (OneIn(2) ? 0 : Below(20));
      terms.flat = FlatTerm{split, offset, (used + k - 1) / k * k};
    } else {
      std::vector<Axes> by_dim(shape.size());
      for (const SubAxis& axis : split) {
        by_dim[Below(static_cast<int64_t>(shape.size()))].push_back(axis);
      }
      for (size_t d = 0; d < shape.size(); ++d) {
        if (!by_dim[d].empty()) terms.shards.push_back({static_cast<int>(d), by_dim[d]});
      }
    }
    return ValueOrThrow(Layout::Create(std::move(terms), shape, mesh));
  }

  // Operations that may be pending together, and a type that has them.
  std::pair<std::vector<ReduceOp>, c10::ScalarType> Ops() {
    switch (Below(8)) {
      case 0:
        return {{ReduceOp::kProduct}, c10::ScalarType::Float};
      case 1:
        return {{std::array{ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}[Below(3)]},
                c10::ScalarType::Int};
      case 2:
        return {{ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}, c10::ScalarType::Long};
      case 3:
        return {{ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin},
                c10::ScalarType::Double};
      case 4:
        return {{ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}, c10::ScalarType::Float};
      default:
        return {{ReduceOp::kSum}, c10::ScalarType::Float};
    }
  }

 private:
  // The axes of the mesh, some of them in two or three parts.
  Axes Parts(const Mesh& mesh) {
    Axes out;
    for (const SubAxis& axis : mesh.AllAxes()) {
      int64_t stride = 1, left = axis.size;
      while (left > 1 && OneIn(3)) {
        const int64_t size = Divisor(left);
        if (size > 1) out.push_back({axis.axis, size, stride});
        stride *= size;
        left /= size;
      }
      if (left > 1 || stride == 1) out.push_back({axis.axis, left, stride});
    }
    return out;
  }

  std::mt19937_64 engine_;
};

}  // namespace

Case RandomCase(int64_t ranks, uint64_t seed) {
  Generator random(seed);
  const Mesh mesh = random.AMesh(ranks);
  const Shape shape = random.AShape();
  const auto [ops, dtype] = random.Ops();
  while (true) {
    const Layout src = random.ALayout(shape, mesh, ops), dst = random.ALayout(shape, mesh, ops);
    if (CheckReachable(src, dst).ok()) return {src, dst, seed, dtype};
  }
}

}  // namespace lins::testing
