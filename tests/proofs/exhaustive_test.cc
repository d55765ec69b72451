// Every ordered pair of layouts of small tensors: planned, run and compared with plain arrays.
//
// The suite runs every kStride-th case; `make exhaustive` (LINS_EXHAUSTIVE=1) all of them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "placement/reachable.h"
#include "tests/proofs/case_runner.h"

namespace lins::testing {
namespace {

constexpr int64_t kSizes[] = {0, 1, 2, 3, 5, 7, 8, 9};
constexpr int64_t kStride = 17;

std::vector<Shape> Shapes() {
  std::vector<Shape> out = {{}};
  for (int64_t n : kSizes) out.push_back({n});
  for (int64_t n : kSizes) {
    for (int64_t m : kSizes) out.push_back({n, m});
  }
  return out;
}

// R; S of one or two dimensions over one or both axes, in every order; F over every ordered set of
// axes; O with every owner.
std::vector<Terms> Splits(int ndim, const Mesh& mesh) {
  const SubAxis a = mesh.AllAxes()[0], b = mesh.AllAxes()[1];
  std::vector<Terms> out(1);
  const auto shard = [&](std::vector<std::pair<int, Axes>> parts) {
    Terms& t = out.emplace_back();
    for (auto& [dim, axes] : parts) t.shards.push_back({dim, axes});
  };
  for (int d = 0; d < ndim; ++d) {
    for (const Axes& axes : {Axes{a}, Axes{b}, Axes{a, b}, Axes{b, a}}) shard({{d, axes}});
    for (int e = 0; e < ndim; ++e) {
      if (e != d) shard({{d, {a}}, {e, {b}}});
    }
  }
  for (const Axes& axes : {Axes{a}, Axes{b}, Axes{a, b}, Axes{b, a}}) {
    out.emplace_back().flat = FlatTerm{axes, 0, -1};
    for (int64_t owner = 0; owner < Mesh::GroupSize(axes); ++owner) {
      if (axes.size() == 2 && axes[0] == b && owner != 1) continue;  // the same ranks, renamed
      out.emplace_back().owned = OwnedTerm{axes, owner};
    }
  }
  return out;
}

// Every split with every pending reduction over the axes that it leaves: sum, max and avg.
std::vector<Layout> Layouts(const Shape& shape, const Mesh& mesh) {
  const std::optional<ReduceOp> ops[] = {std::nullopt, ReduceOp::kSum, ReduceOp::kMax,
                                         ReduceOp::kAvg};
  std::vector<Layout> out;
  for (Terms split : Splits(static_cast<int>(shape.size()), mesh)) {
    if (split.flat) {
      const int64_t k = Mesh::GroupSize(split.flat->axes);
      split.flat->total = (Numel(shape) + k - 1) / k * k;
    }
    for (const auto& on_a : ops) {
      for (const auto& on_b : ops) {
        Terms terms = split;
        if (on_a) terms.partials.push_back({*on_a, {mesh.AllAxes()[0]}});
        if (on_b) terms.partials.push_back({*on_b, {mesh.AllAxes()[1]}});
        auto layout = Layout::Create(std::move(terms), shape, mesh);
        if (!layout.ok()) continue;  // an axis used twice
        if (std::find(out.begin(), out.end(), *layout) == out.end()) out.push_back(*layout);
      }
    }
  }
  return out;
}

// On one axis: S0 over every part of it and over every two that fit together, each with a pending
// sum over every further part.
std::vector<Layout> LayoutsOfParts(const Shape& shape, const Mesh& mesh) {
  const int64_t whole = mesh.size();
  std::vector<Axes> lists = {{}};
  for (int64_t stride = 1; stride < whole; ++stride) {
    for (int64_t size = 2; stride * size <= whole; ++size) {
      const Axes part = {{0, size, stride}};
      if (mesh.Validate(part).ok()) lists.push_back(part);
    }
  }
  const size_t single = lists.size();
  for (size_t i = 1; i < single; ++i) {
    for (size_t j = 1; j < single; ++j) lists.push_back({lists[i][0], lists[j][0]});
  }
  std::vector<Layout> out;
  for (const Axes& split : lists) {
    for (size_t pending = 0; pending < single; ++pending) {
      Terms terms;
      if (!split.empty()) terms.shards.push_back({0, split});
      if (pending > 0) terms.partials.push_back({ReduceOp::kSum, lists[pending]});
      auto layout = Layout::Create(std::move(terms), shape, mesh);
      if (layout.ok()) out.push_back(*std::move(layout));
    }
  }
  return out;
}

// The pairs of layouts of all shapes, numbered.
class Pairs {
 public:
  Pairs(const Mesh& mesh, const std::vector<Shape>& shapes,
        std::vector<Layout> (*layouts)(const Shape&, const Mesh&)) {
    for (const Shape& shape : shapes) {
      begin_.push_back(size_);
      layouts_.push_back(layouts(shape, mesh));
      size_ += static_cast<int64_t>(layouts_.back().size() * layouts_.back().size());
    }
  }
  int64_t size() const { return size_; }
  // Nothing for a pair that values do not allow.
  std::optional<Case> operator[](int64_t i) const {
    const size_t shape = std::upper_bound(begin_.begin(), begin_.end(), i) - begin_.begin() - 1;
    const std::vector<Layout>& all = layouts_[shape];
    const auto pair = static_cast<size_t>(i - begin_[shape]);
    const Layout &src = all[pair / all.size()], &dst = all[pair % all.size()];
    if (!CheckReachable(src, dst).ok()) return std::nullopt;
    return Case{src, dst, static_cast<uint64_t>(i)};
  }

 private:
  int64_t size_ = 0;
  std::vector<int64_t> begin_;
  std::vector<std::vector<Layout>> layouts_;
};

// Every stride-th pair; all of them when asked.
void RunPairs(const Mesh& mesh, const Pairs& pairs, int64_t stride) {
  if (std::getenv("LINS_EXHAUSTIVE")) stride = 1;
  const auto start = std::chrono::steady_clock::now();
  const Tally tally = RunCases(mesh.size(), (pairs.size() + stride - 1) / stride,
                               [&](int64_t i) { return pairs[i * stride]; });
  EXPECT_TRUE(tally.failures.empty()) << absl::StrJoin(tally.failures, "\n\n");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << absl::StrFormat(
      "exhaustive %s: %d cases of %d pairs, %d steps, %d collectives, %d bytes received, %.0f s\n",
      mesh.ToString(), tally.cases, pairs.size(), tally.steps, tally.collectives, tally.recv_bytes,
      took.count());
}

class Exhaustive : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(Exhaustive, EveryPairOfLayoutsOfSmallTensorsIsExact) {
  const Mesh mesh = *Mesh::Create(GetParam(), {"a", "b"});
  RunPairs(mesh, Pairs(mesh, Shapes(), &Layouts), kStride);
}

INSTANTIATE_TEST_SUITE_P(Meshes, Exhaustive,
                         ::testing::Values(std::vector<int64_t>{2, 2}, std::vector<int64_t>{2, 3},
                                           std::vector<int64_t>{3, 2}, std::vector<int64_t>{4, 2},
                                           std::vector<int64_t>{1, 4}),
                         [](const auto& info) { return absl::StrJoin(info.param, "x"); });

TEST(ExhaustiveParts, EveryPairOfPartsOfAnAxisOfTwelveIsExact) {
  const Mesh mesh = *Mesh::Create({12}, {"a"});
  RunPairs(mesh, Pairs(mesh, {{7}, {12}, {25}}, &LayoutsOfParts), kStride);
}

}  // namespace
}  // namespace lins::testing
