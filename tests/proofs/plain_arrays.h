// Distributed tensors as plain arrays: which elements a rank holds, and what the ranks' values make
// together. Written from the notation's definition alone (placement/layout.h); nothing of what the
// tests examine is used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mesh/error.h"
#include "placement/layout.h"

namespace lins::testing {

inline int64_t Coordinate(const Mesh& mesh, const SubAxis& a, int64_t rank) {
  for (int i = mesh.ndim() - 1; i > a.axis; --i) rank /= mesh.shape()[i];
  return rank % mesh.shape()[a.axis] / a.stride % a.size;
}

inline int64_t IndexAlong(const Mesh& mesh, const Axes& axes, int64_t rank) {
  int64_t index = 0;
  for (const SubAxis& a : axes) index = index * a.size + Coordinate(mesh, a, rank);
  return index;
}

// The rank that has `index` along `axes` and is otherwise like `rank`.
inline int64_t RankAt(const Mesh& mesh, const Axes& axes, int64_t rank, int64_t index) {
  for (size_t i = axes.size(); i-- > 0; index /= axes[i].size) {
    int64_t stride = axes[i].stride;
    for (int d = axes[i].axis + 1; d < mesh.ndim(); ++d) stride *= mesh.shape()[d];
    rank += (index % axes[i].size - Coordinate(mesh, axes[i], rank)) * stride;
  }
  return rank;
}

// Row-major numbers of the elements that `rank` holds, in the order of its local tensor.
inline std::vector<int64_t> Elements(const Layout& layout, int64_t rank) {
  const Mesh& mesh = layout.mesh();
  const Terms& terms = layout.terms();
  int64_t numel = 1;
  for (int64_t n : layout.shape()) numel *= n;
  std::vector<int64_t> out;
  if (terms.flat || terms.owned) {
    int64_t begin = 0, end = numel;
    if (terms.flat) {
      int64_t group = 1;
      for (const SubAxis& a : terms.flat->axes) group *= a.size;
      const int64_t slot = terms.flat->total / group;
      begin = IndexAlong(mesh, terms.flat->axes, rank) * slot - terms.flat->offset;
      end = std::min(numel, begin + slot);
    } else if (IndexAlong(mesh, terms.owned->axes, rank) != terms.owned->owner) {
      end = 0;
    }
    for (int64_t e = std::max<int64_t>(begin, 0); e < end; ++e) out.push_back(e);
    return out;
  }
  out.push_back(0);
  for (size_t d = 0; d < layout.shape().size(); ++d) {
    int64_t begin = 0, end = layout.shape()[d];
    for (const ShardTerm& t : terms.shards) {
      if (t.dim != static_cast<int>(d)) continue;
      for (const SubAxis& a : t.axes) {
        const int64_t chunk = (end - begin + a.size - 1) / a.size;
        begin = std::min(end, begin + chunk * Coordinate(mesh, a, rank));
        end = std::min(end, begin + chunk);
      }
    }
    std::vector<int64_t> next;
    for (int64_t e : out) {
      for (int64_t i = begin; i < end; ++i) next.push_back(e * layout.shape()[d] + i);
    }
    out = std::move(next);
  }
  return out;
}

inline double Combine(ReduceOp op, const std::vector<double>& parts) {
  double all = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const double x = parts[i];
    const auto p = static_cast<int64_t>(all), q = static_cast<int64_t>(x);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        all += x;
        break;
      case ReduceOp::kMin:
        all = std::min(all, x);
        break;
      case ReduceOp::kMax:
        all = std::max(all, x);
        break;
      case ReduceOp::kProduct:
        all *= x;
        break;
      case ReduceOp::kBand:
        all = static_cast<double>(p & q);
        break;
      case ReduceOp::kBor:
        all = static_cast<double>(p | q);
        break;
      case ReduceOp::kBxor:
        all = static_cast<double>(p ^ q);
        break;
    }
  }
  return op == ReduceOp::kAvg ? all / static_cast<double>(parts.size()) : all;
}

// What the contributions of all ranks that are pending together with `rank` make: value(r) is that
// of rank r. Several operations are nested in the order of the terms, from `term` on.
template <typename Fn>
double Together(const Layout& layout, int64_t rank, const Fn& value, size_t term = 0) {
  const auto& partials = layout.terms().partials;
  if (term == partials.size()) return value(rank);
  int64_t group = 1;
  for (const SubAxis& a : partials[term].axes) group *= a.size;
  std::vector<double> parts;
  for (int64_t i = 0; i < group; ++i) {
    const int64_t peer = RankAt(layout.mesh(), partials[term].axes, rank, i);
    parts.push_back(Together(layout, peer, value, term + 1));
  }
  return Combine(partials[term].op, parts);
}

// The contribution of `rank` to an element: a whole number that all replicas of the rank share.
// Chosen so that all results are exact in float: averages of up to 12 ranks are whole, and
// operations that are pending together give the same result in either order.
inline double Contribution(const Layout& layout, int64_t rank, int64_t element, uint64_t seed) {
  const auto mix = [&](uint64_t a, uint64_t b) {
    uint64_t x = seed * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(element) * 0xbf58476d1ce4e5b9 +
                 a * 0x94d049bb133111eb + b * 0xd6e8feb86659fd93;
    x = (x ^ x >> 31) * 0x7fb5d329728ea185;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44d;
    return x ^ x >> 33;
  };
  constexpr double kWhole = 27720;  // divides by 1 to 12
  constexpr double kFactors[] = {1, 2, -2, -1};
  const auto& partials = layout.terms().partials;
  if (partials.empty()) return kWhole * (static_cast<double>(mix(99, 0) % 19) - 9);
  double sum = 0;
  for (size_t t = 0; t < partials.size(); ++t) {
    const uint64_t x =
        mix(t, static_cast<uint64_t>(IndexAlong(layout.mesh(), partials[t].axes, rank)));
    switch (partials[t].op) {
      case ReduceOp::kProduct:
        sum += kFactors[x % 4];
        break;
      case ReduceOp::kBand:
      case ReduceOp::kBor:
      case ReduceOp::kBxor:
        sum += static_cast<double>(x % 64);
        break;
      default:
        sum += kWhole * (static_cast<double>(x % 19) - 9);
    }
  }
  return sum;
}

}  // namespace lins::testing
