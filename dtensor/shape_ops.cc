// Reshape, transpose and indexing, where a layout describes the result.
#include <algorithm>

#include "absl/strings/str_join.h"
#include "dtensor/ops_internal.h"

namespace lins {
namespace {

constexpr const char* kAdvice = ". Redistribute it to R first";

// The layout of `x` seen as `shape`, if there is one. A split of dimension d becomes one of a
// dimension d' with as many elements before it, if every rank's range covers the same elements:
//   S0(x) of (4, 6) is S0(x) of (4, 2, 3), of (2, 2, 6) and of (24,) on two ranks, but not of (3,
//   8).
std::optional<Layout> Reshaped(const Layout& x, const Shape& shape) {
  Terms terms = x.terms();
  if (x.IsFlatOrOwned()) return MakeLayout(std::move(terms), shape, x.mesh());
  terms.shards.clear();
  const auto product = [](const Shape& s, size_t begin, size_t end) {
    int64_t n = 1;
    for (size_t d = begin; d < end; ++d) n *= s[d];
    return n;
  };
  for (const ShardTerm& t : x.terms().shards) {
    const int64_t before = product(x.shape(), 0, t.dim);
    const int64_t after = product(x.shape(), t.dim + 1, x.shape().size());
    bool found = false;
    const auto taken = [&terms](size_t d) {
      return std::any_of(terms.shards.begin(), terms.shards.end(),
                         [d](const ShardTerm& s) { return static_cast<size_t>(s.dim) == d; });
    };
    for (size_t d = 0; d < shape.size() && !found; ++d) {
      if (product(shape, 0, d) != before || taken(d)) continue;
      Terms one;
      one.shards.push_back({static_cast<int>(d), t.axes});
      const Layout candidate = MakeLayout(one, shape, x.mesh());
      const int64_t unit = product(shape, d + 1, shape.size());
      bool equal = shape[d] * unit == x.shape()[t.dim] * after;
      for (int64_t r = 0; r < x.mesh().size() && equal; ++r) {
        const Range p = x.RangesOf(r)[t.dim], q = candidate.RangesOf(r)[d];
        equal = p.first * after == q.first * unit && p.second * after == q.second * unit;
      }
      if (!equal) continue;
      terms.shards.push_back(one.shards[0]);
      found = true;
    }
    // A tensor without elements needs no split.
    if (!found && x.numel() > 0) return std::nullopt;
  }
  absl::StatusOr<Layout> layout = Layout::Create(std::move(terms), shape, x.mesh());
  if (!layout.ok()) return std::nullopt;  // two splits of one dimension
  return *std::move(layout);
}

// The result of an operation that every rank that holds something does on its own part.
template <typename Fn>
DTensor OnHolders(const DTensor& x, const Layout& layout, const Fn& fn) {
  if (IsElsewhere(x.layout(), x.mesh().rank()))
    return DTensor::FromLocal(x.ToLocal(), x.mesh(), layout);
  return DTensor::FromLocal(fn(x.ToLocal()), x.mesh(), layout);
}

std::string ToString(const IndexItem& item) {
  if (const auto* i = std::get_if<int64_t>(&item)) return absl::StrCat(*i);
  if (std::holds_alternative<IndexNone>(item)) return "None";
  if (std::holds_alternative<IndexEllipsis>(item)) return "...";
  const IndexSlice& s = std::get<IndexSlice>(item);
  const auto bound = [](const std::optional<int64_t>& b) {
    return b ? absl::StrCat(*b) : std::string();
  };
  return absl::StrCat(bound(s.start), ":", bound(s.stop),
                      s.step == 1 ? "" : absl::StrCat(":", s.step));
}

// [first, past the last) of a slice of n elements.
Range Bounds(const IndexSlice& s, int64_t n) {
  const auto clamp = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  const int64_t start = clamp(s.start.value_or(0)), stop = clamp(s.stop.value_or(n));
  return {start, std::max(start, stop)};
}

// One item per dimension of x, or None: the ellipsis (there is one at the end unless elsewhere)
// written out.
std::vector<IndexItem> WrittenOut(const DTensor& x, const std::vector<IndexItem>& items) {
  int64_t used = 0, dots = 0;
  for (const IndexItem& item : items) {
    used += std::holds_alternative<int64_t>(item) || std::holds_alternative<IndexSlice>(item);
    dots += std::holds_alternative<IndexEllipsis>(item);
  }
  if (used > x.dim() || dots > 1) {
    throw Error(absl::StrCat("index: ", used, " indices and ", dots,
                             " ellipses for a tensor of shape ", ShapeToString(x.shape())));
  }
  std::vector<IndexItem> out;
  const auto fill = [&] { out.insert(out.end(), x.dim() - used, IndexSlice()); };
  for (const IndexItem& item : items) {
    if (std::holds_alternative<IndexEllipsis>(item)) {
      fill();
    } else {
      out.push_back(item);
    }
  }
  if (dots == 0) fill();
  return out;
}

}  // namespace

DTensor Reshape(const DTensor& x, const std::vector<int64_t>& sizes) {
  Shape shape(sizes.begin(), sizes.end());
  int64_t known = 1;
  auto unknown = shape.end();
  for (auto it = shape.begin(); it != shape.end(); ++it) {
    if (*it == -1 && unknown == shape.end()) {
      unknown = it;
    } else {
      known *= *it;
    }
  }
  if (unknown != shape.end() && known > 0 && x.layout().numel() % known == 0)
    *unknown = x.layout().numel() / known;
  if (Numel(shape) != x.layout().numel() ||
      std::any_of(shape.begin(), shape.end(), [](int64_t s) { return s < 0; })) {
    throw Error(absl::StrCat("reshape: shape ", ShapeToString(Shape(sizes.begin(), sizes.end())),
                             " does not fit the ", x.layout().numel(), " elements of ",
                             ShapeToString(x.shape())));
  }
  const std::optional<Layout> layout = Reshaped(x.layout(), shape);
  if (!layout) {
    throw Error(absl::StrCat(
        "reshape of ", Describe(x.layout()), " to ", ShapeToString(shape),
        ": no layout describes the result without moving elements between ranks", kAdvice));
  }
  return OnHolders(x, *layout, [&](const at::Tensor& local) {
    return local.view(Sizes(layout->LocalShape(x.mesh().rank())));
  });
}

DTensor Transpose(const DTensor& x, int64_t dim0, int64_t dim1) {
  const int64_t a = WrapDim("transpose", x, dim0), b = WrapDim("transpose", x, dim1);
  if (a == b) return x;
  if (x.layout().terms().flat) {
    throw Error(absl::StrCat("transpose of ", Describe(x.layout()),
                             ": a flat shard follows the order of elements, which changes",
                             kAdvice));
  }
  Shape shape = x.shape();
  std::swap(shape[a], shape[b]);
  Terms terms = x.layout().terms();
  for (ShardTerm& t : terms.shards)
    t.dim = static_cast<int>(t.dim == a ? b : t.dim == b ? a : t.dim);
  return OnHolders(x, MakeLayout(std::move(terms), std::move(shape), x.mesh()),
                   [&](const at::Tensor& local) { return local.transpose(a, b); });
}

DTensor Index(const DTensor& x, const std::vector<IndexItem>& given) {
  const std::vector<IndexItem> items = WrittenOut(x, given);
  const auto text = [&] {
    return absl::StrCat(
        "[",
        absl::StrJoin(given, ", ",
                      [](std::string* o, const IndexItem& i) { absl::StrAppend(o, ToString(i)); }),
        "]");
  };
  const Layout& layout = x.layout();
  Terms terms = layout.terms();
  terms.shards.clear();
  Shape shape;
  bool whole = true;
  int dim = 0;
  for (const IndexItem& item : items) {
    if (std::holds_alternative<IndexNone>(item)) {
      shape.push_back(1);
      continue;
    }
    const int64_t n = x.shape()[dim];
    const ShardTerm* split = nullptr;
    for (const ShardTerm& t : layout.terms().shards) split = t.dim == dim ? &t : split;
    bool all = false;
    if (const auto* i = std::get_if<int64_t>(&item)) {
      if (*i < -n || *i >= n) {
        throw Error(absl::StrCat("index ", *i, " is out of range for dimension ", dim, " of shape ",
                                 ShapeToString(x.shape())));
      }
    } else {
      const IndexSlice& s = std::get<IndexSlice>(item);
      if (s.step < 1)
        throw Error(absl::StrCat("index: step ", s.step, " of a slice is less than 1"));
      const Range r = Bounds(s, n);
      all = r == Range{0, n} && s.step == 1;
      if (all && split) terms.shards.push_back({static_cast<int>(shape.size()), split->axes});
      shape.push_back((r.second - r.first + s.step - 1) / s.step);
    }
    whole = whole && all;
    if (split && !all) {
      throw Error(absl::StrCat("index ", text(), " takes a part of dimension ", dim,
                               ", which is split: ", Describe(layout), kAdvice));
    }
    ++dim;
  }
  if (layout.terms().flat && !whole) {
    throw Error(absl::StrCat("index ", text(), " takes a part of a flat shard: ", Describe(layout),
                             kAdvice));
  }
  const Layout out = MakeLayout(std::move(terms), std::move(shape), x.mesh());
  if (layout.terms().flat) return DTensor::FromLocal(x.ToLocal(), x.mesh(), out);
  return OnHolders(x, out, [&](at::Tensor local) {
    int64_t d = 0, in = 0;
    for (const IndexItem& item : items) {
      if (std::holds_alternative<IndexNone>(item)) {
        local = local.unsqueeze(d++);
      } else if (const auto* i = std::get_if<int64_t>(&item)) {
        local = local.select(d, *i);
        ++in;
      } else {
        const IndexSlice& s = std::get<IndexSlice>(item);
        const Range r = Bounds(s, x.shape()[in++]);
        if (!(r == Range{0, x.shape()[in - 1]} && s.step == 1))
          local = local.slice(d, r.first, r.second, s.step);
        ++d;
      }
    }
    return local;
  });
}

}  // namespace lins
