// Who holds what in common, counted element by element.
#include <gtest/gtest.h>

#include <set>

#include "placement/redistribution.h"

namespace lins {
namespace {

// Row-major numbers of the elements that a rank holds.
std::set<int64_t> Held(const Layout& layout, int64_t rank) {
  const Ranges ranges = layout.RangesOf(rank);
  std::set<int64_t> out;
  for (int64_t i = 0; i < layout.numel(); ++i) {
    bool inside = true;
    if (layout.IsFlatOrOwned()) {
      inside = i >= ranges[0].first && i < ranges[0].second;
    } else {
      int64_t rest = i;
      for (size_t d = layout.shape().size(); d-- > 0; rest /= layout.shape()[d]) {
        const int64_t c = rest % layout.shape()[d];
        inside = inside && c >= ranges[d].first && c < ranges[d].second;
      }
    }
    if (inside) out.insert(i);
  }
  return out;
}

TEST(TrafficTest, OverlapIsTheNumberOfCommonElements) {
  const Mesh mesh = *Mesh::Create({2, 3}, {"a", "b"});
  for (const Shape& shape :
       {Shape{}, Shape{0}, Shape{5}, Shape{5, 3}, Shape{4, 0}, Shape{3, 4, 2}}) {
    std::vector<Layout> layouts;
    for (const char* text :
         {"R", "S0(a)", "S0(b,a)", "S1(b)", "S0(a) S1(b)", "S1(a,b)", "S2(b) S0(a)", "F(a)",
          "F(b,a)", "F(a,b; 4/36)", "O(a; 1)", "O(a,b; 5)"}) {
      if (const auto layout = Layout::Parse(text, shape, mesh); layout.ok())
        layouts.push_back(*layout);
    }
    for (const Layout& x : layouts) {
      for (const Layout& y : layouts) {
        for (int64_t i = 0; i < mesh.size(); ++i) {
          for (int64_t j = 0; j < mesh.size(); ++j) {
            int64_t want = 0;
            const std::set<int64_t> held = Held(y, j);
            for (int64_t e : Held(x, i)) want += held.count(e);
            ASSERT_EQ(OverlapElements(x, i, y, j), want)
                << Describe(x) << " rank " << i << ", " << Describe(y) << " rank " << j;
          }
        }
      }
    }
  }
}

TEST(TrafficTest, TheNearestHolderDiffersInTheSplitAxesOnly) {
  const Mesh mesh = *Mesh::Create({2, 2, 2}, {"a", "b", "c"});
  const Layout layout = *Layout::Parse("S0(c,a)", {8}, mesh);
  for (int64_t rank = 0; rank < 8; ++rank) {
    for (int64_t shard = 0; shard < 4; ++shard) {
      const int64_t holder = Holder(layout, shard, rank);
      EXPECT_EQ(layout.RangesOf(holder)[0], Range(2 * shard, 2 * shard + 2));
      EXPECT_EQ(mesh.Coordinate(holder)[1], mesh.Coordinate(rank)[1]);
    }
  }
}

TEST(TrafficTest, ReductionsReceiveOnceForEveryOtherContribution) {
  const Mesh mesh = *Mesh::Create({4}, {"a"});
  const Layout partial = *Layout::Parse("+sum(a)", {10}, mesh),
               whole = *Layout::Parse("R", {10}, mesh);
  const Layout split = *Layout::Parse("S0(a)", {10}, mesh);
  const int64_t rows[] = {3, 3, 3, 1};
  const Step scatter = MakeStep(StepKind::kReduceScatter, mesh.AllAxes(), partial, split, 4);
  const Step all = MakeStep(StepKind::kAllReduce, mesh.AllAxes(), partial, whole, 4);
  const Step gather = MakeStep(StepKind::kAllGather, mesh.AllAxes(), split, whole, 4);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(RecvBytes(scatter, rank, 4), 3 * rows[rank] * 4);
    EXPECT_EQ(RecvBytes(gather, rank, 4), (10 - rows[rank]) * 4);
    EXPECT_EQ(RecvBytes(all, rank, 4), (3 * rows[rank] + 10 - rows[rank]) * 4);
  }
  EXPECT_EQ(scatter.bytes, 40);  // unreduced
  EXPECT_EQ(gather.bytes, 40);   // gathered
  EXPECT_EQ(all.bytes, 40);
  EXPECT_EQ(gather.peak_bytes, (3 + 10) * 4);
}

TEST(TrafficTest, AReductionThatBeginsNeedsNothingFromOthers) {
  const Mesh mesh = *Mesh::Create({2, 2}, {"a", "b"});
  const auto bound = [&](absl::string_view src, absl::string_view dst) {
    return LowerBoundBytes(*Layout::Parse(src, {8}, mesh), *Layout::Parse(dst, {8}, mesh), 4);
  };
  EXPECT_EQ(bound("R", "+sum(a)"), 0);
  EXPECT_EQ(bound("S0(a)", "+sum(a)"), 0);
  EXPECT_EQ(bound("+sum(a)", "+sum(a,b)"), 0);
  // Two ranks that stay partial hold three quarters of the contributions too few between them.
  EXPECT_EQ(bound("S0(b)", "+sum(a)"), 2 * 4);
  EXPECT_EQ(bound("+sum(a,b)", "+sum(a)"), 6 * 4);
}

}  // namespace
}  // namespace lins
