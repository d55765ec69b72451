// Which elements a rank holds, element by element against nested torch.chunk.
#include <gtest/gtest.h>

#include <vector>

#include "placement/layout.h"

namespace lins {
namespace {

using Ints = std::vector<int64_t>;

// torch.chunk(values, k)[index]; beyond the last piece, nothing.
Ints TorchChunk(const Ints& values, int64_t k, int64_t index) {
  const int64_t n = static_cast<int64_t>(values.size());
  Ints out;
  for (int64_t i = 0; i < n; ++i) {
    if (i / ((n + k - 1) / k) == index) out.push_back(values[i]);
  }
  return out;
}

Ints Iota(int64_t n) {
  Ints out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = i;
  return out;
}

// What a range stands for; an empty one must be [n, n).
Ints Elements(Range r, int64_t n) {
  EXPECT_TRUE(r.first < r.second || r == Range(n, n)) << r.first << ", " << r.second;
  Ints out;
  for (int64_t i = r.first; i < r.second; ++i) out.push_back(i);
  return out;
}

TEST(ChunkTest, IsTorchChunk) {
  for (int64_t n = 0; n <= 12; ++n) {
    for (int64_t k = 1; k <= 13; ++k) {
      int64_t at = 5;
      for (int64_t i = 0; i < k; ++i) {
        const Range r = Chunk({5, 5 + n}, k, i);
        EXPECT_EQ(r.first, at);
        EXPECT_EQ(r.second - r.first, static_cast<int64_t>(TorchChunk(Iota(n), k, i).size()));
        at = r.second;
      }
      EXPECT_EQ(at, 5 + n);
    }
  }
}

TEST(LayoutRangesTest, NestedSplitsChunkTheChunk) {
  for (const Ints& sizes : {Ints{1, 1}, Ints{1, 3}, Ints{2, 2}, Ints{3, 2}, Ints{3, 3}}) {
    const Mesh mesh = *Mesh::Create(sizes, {"a", "b"});
    for (const char* text : {"R", "S0(a)", "S0(b)", "S0(a,b)", "S0(b,a)"}) {
      for (int64_t n = 0; n <= 9; ++n) {
        const Layout layout = *Layout::Parse(text, {n}, mesh);
        Ints holders(n, 0);
        int64_t most = 0;
        for (int64_t rank = 0; rank < mesh.size(); ++rank) {
          Ints want = Iota(n);
          for (const SubAxis& a : layout.SplitAxes()) {
            want = TorchChunk(want, a.size, mesh.Coordinate(rank)[a.axis]);
          }
          const Ints got = Elements(layout.RangesOf(rank)[0], n);
          ASSERT_EQ(got, want) << Describe(layout) << " rank " << rank;
          ASSERT_EQ(layout.LocalNumel(rank), static_cast<int64_t>(want.size()));
          ASSERT_EQ(layout.LocalShape(rank), Shape{static_cast<int64_t>(want.size())});
          for (int64_t i : got) ++holders[i];
          most = std::max(most, layout.LocalNumel(rank));
        }
        const int64_t copies = mesh.size() / Mesh::GroupSize(layout.SplitAxes());
        ASSERT_EQ(holders, Ints(n, copies)) << Describe(layout);
        ASSERT_EQ(layout.MaxLocalNumel(), most);
      }
    }
  }
}

TEST(LayoutRangesTest, FlatSlotsAreEqualAndTheTensorIsAWindow) {
  const Mesh mesh = *Mesh::Create({2, 3}, {"a", "b"});
  for (const char* axes : {"a", "b", "a,b", "b,a"}) {
    const Axes split = *mesh.ParseAxes(axes);
    const int64_t k = Mesh::GroupSize(split);
    for (int64_t n = 0; n <= 9; ++n) {
      for (int64_t offset = 0; offset <= 7; ++offset) {
        const int64_t total = (n + offset + k - 1) / k * k + k;
        Terms terms;
        terms.flat = FlatTerm{split, offset, total};
        const Layout layout = *Layout::Create(terms, {n}, mesh);
        int64_t most = 0;
        for (int64_t rank = 0; rank < mesh.size(); ++rank) {
          Ints want;
          for (int64_t i = 0; i < n; ++i) {
            if ((i + offset) / (total / k) == mesh.IndexInGroup(split, rank)) want.push_back(i);
          }
          ASSERT_EQ(Elements(layout.RangesOf(rank)[0], n), want) << Describe(layout);
          most = std::max(most, layout.LocalNumel(rank));
        }
        ASSERT_EQ(layout.MaxLocalNumel(), most) << Describe(layout);
      }
    }
  }
}

TEST(LayoutRangesTest, TheOwnerHoldsTheWholeTensorInItsShape) {
  const Mesh mesh = *Mesh::Create({2, 2}, {"a", "b"});
  const Layout layout = *Layout::Parse("O(b,a; 1)", {2, 3}, mesh);  // index 1 of (b,a) is a = 1
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(layout.LocalShape(rank), rank == 2 ? Shape({2, 3}) : Shape({0})) << rank;
    EXPECT_EQ(layout.RangesOf(rank)[0], rank == 2 ? Range(0, 6) : Range(6, 6)) << rank;
  }
  EXPECT_EQ(layout.MaxLocalNumel(), 6);
  EXPECT_EQ(Layout::Parse("O(a,b; 3)", {}, mesh)->LocalShape(3), Shape{});
  EXPECT_EQ(Layout::Parse("O(a,b; 3)", {}, mesh)->LocalShape(0), Shape{0});
}

TEST(LayoutRangesTest, TwoElementsOverAMeshOfEightFillTwoShards) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"a", "b"});
  for (const char* text : {"S0(a,b)", "S0(b,a)"}) {
    const Layout layout = *Layout::Parse(text, {2}, mesh);
    int filled = 0;
    for (int64_t rank = 0; rank < 8; ++rank) {
      const Range r = layout.RangesOf(rank)[0];
      filled += r.first < r.second;
      EXPECT_TRUE(r.first < r.second || r == Range(2, 2));
    }
    EXPECT_EQ(filled, 2) << text;
  }
}

TEST(LayoutRangesTest, LengthSixNestedDiffersFromLengthSixInOneSplit) {
  const Mesh two = *Mesh::Create({2, 2}, {"a", "b"}), one = *Mesh::Create({4}, {"a"});
  const Layout nested = *Layout::Parse("S0(a,b)", {6}, two);
  const Layout parts = *Layout::Parse("S0(a:2@2,a:2)", {6}, one);
  const Layout flat = *Layout::Parse("S0(a)", {6}, one);
  const Ints want_nested = {2, 1, 2, 1}, want_flat = {2, 2, 2, 0};
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(nested.LocalNumel(rank), want_nested[rank]);
    EXPECT_EQ(parts.LocalNumel(rank), want_nested[rank]);
    EXPECT_EQ(flat.LocalNumel(rank), want_flat[rank]);
  }
  EXPECT_FALSE(parts == flat);
}

}  // namespace
}  // namespace lins
