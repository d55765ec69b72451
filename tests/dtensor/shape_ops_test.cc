// Reshape, transpose and indexing: the whole tensor's result without communication, or a refusal.
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

class ShapeOps : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, ShapeOps, kMeshes, MeshName);

// fn gives the plain result or is refused with advice; either way nothing is communicated. Returns
// whether it was carried out.
template <typename Fn>
bool IsRightOrRefused(const LiveMesh& mesh, const at::Tensor& want, const Fn& fn) {
  std::optional<DTensor> got;
  std::string refused;
  const Strings kinds = Collectives(mesh, [&] { refused = ErrorOf([&] { got = fn(); }); });
  EXPECT_EQ(kinds, Strings());
  if (!got) {
    EXPECT_NE(refused.find("Redistribute it to R first"), std::string::npos) << refused;
    return false;
  }
  EXPECT_TRUE(Same(*got, want)) << Describe(got->layout());
  return true;
}

TEST_P(ShapeOps, EveryReshapeOfEveryLayoutIsRightOrRefused) {
  Run([](const LiveMesh& mesh) {
    const std::vector<std::vector<Sizes>> families = {
        {{12}, {1, 12}, {12, 1}, {3, 4}, {4, 3}, {2, 6}, {6, 2}, {2, 2, 3}, {3, 2, 2}},
        {{5}, {1, 5}, {5, 1}, {1, 5, 1}},
        {{0}, {0, 3}, {2, 0}},
        {{24}, {4, 6}, {2, 2, 6}, {4, 2, 3}, {8, 3}}};
    for (const auto& shapes : families) {
      for (const Sizes& from : shapes) {
        const at::Tensor a = Whole(from);
        int done = 0;
        for (const std::string& layout : LayoutsOf(static_cast<int64_t>(from.size()))) {
          const DTensor x = Place(a, mesh, layout);
          for (const Sizes& to : shapes) {
            const bool is_same = to == from;
            const bool ran = IsRightOrRefused(mesh, a.reshape(to), [&] { return Reshape(x, to); });
            done += ran;
            if (is_same || layout == "R" || layout[0] == 'F' || layout[0] == 'O' ||
                layout[0] == '+') {
              EXPECT_TRUE(ran) << Describe(x.layout()) << " to " << absl::StrJoin(to, ",");
            }
          }
        }
        EXPECT_GT(done, 0);
      }
    }
  });
}

TEST_P(ShapeOps, TransposesOfEveryLayoutAreRightAndOfFlatShardsRefused) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& shape :
         {Sizes{3, 5}, Sizes{4, 4}, Sizes{5, 1}, Sizes{0, 3}, Sizes{2, 3, 4}}) {
      const at::Tensor a = Whole(shape);
      for (const std::string& layout : LayoutsOf(static_cast<int64_t>(shape.size()))) {
        const DTensor x = Place(a, mesh, layout);
        for (const auto& [d, e] : {std::pair<int64_t, int64_t>{0, 1}, {-1, 0}, {-2, -1}}) {
          const bool ran = IsRightOrRefused(mesh, a.transpose(d, e).contiguous(),
                                            [&, d = d, e = e] { return Transpose(x, d, e); });
          EXPECT_EQ(ran, layout[0] != 'F') << layout;
        }
        EXPECT_TRUE(Same(Transpose(x, 1, 1), a)) << layout;
      }
    }
  });
}

TEST_P(ShapeOps, IndexingOfEveryLayoutIsRightOrRefused) {
  using S = IndexSlice;
  using at::indexing::Slice;
  const struct {
    std::vector<IndexItem> items;
    std::vector<at::indexing::TensorIndex> plain;
  } kIndices[] = {
      {{}, {at::indexing::Ellipsis}},
      {{int64_t{1}}, {1}},
      {{int64_t{-1}}, {-1}},
      {{S(), int64_t{2}}, {Slice(), 2}},
      {{S{1, 3, 1}}, {Slice(1, 3)}},
      {{S(), S{{}, {}, 2}}, {Slice(), Slice(at::indexing::None, at::indexing::None, 2)}},
      {{S(), S{-2, {}, 1}}, {Slice(), Slice(-2)}},
      {{S{5, 2, 1}}, {Slice(5, 2)}},
      {{IndexNone(), S(), int64_t{0}}, {at::indexing::None, Slice(), 0}},
      {{IndexEllipsis(), int64_t{1}, IndexNone()}, {at::indexing::Ellipsis, 1, at::indexing::None}},
      {{S{-100, 100, 1}}, {Slice(-100, 100)}}};
  Run([&](const LiveMesh& mesh) {
    for (const Sizes& shape : {Sizes{3, 5}, Sizes{4, 4}}) {
      const at::Tensor a = Whole(shape);
      for (const std::string& layout : LayoutsOf(2)) {
        const DTensor x = Place(a, mesh, layout);
        const bool whole = layout == "R" || layout[0] == 'O' || layout[0] == '+';
        for (const auto& index : kIndices) {
          const at::Tensor want = index.plain.empty() ? a : a.index(index.plain).contiguous();
          const bool ran = IsRightOrRefused(mesh, want, [&] { return Index(x, index.items); });
          EXPECT_TRUE(ran || !whole) << layout;
        }
      }
    }
  });
}

TEST(ShapeRules, ASplitMovesToTheDimensionThatHoldsTheSameElements) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const struct {
      Sizes shape;
      const char* layout;
      Sizes to;
      const char* result;
    } rows[] = {{{4, 6}, "S0(gpu)", {4, 2, 3}, "S0(gpu)"},
                {{4, 6}, "S0(gpu)", {2, 2, 6}, "S0(gpu)"},
                {{4, 6}, "S0(gpu)", {24}, "S0(gpu)"},
                {{4, 6}, "S1(gpu)", {2, 2, 6}, "S2(gpu)"},
                {{4, 6}, "S0(node) S1(gpu)", {2, 2, 2, 3}, "S0(node) S2(gpu)"},
                {{5, 3}, "O(gpu; 1)", {3, -1}, "O(gpu; 1)"},
                {{1, 4}, "S1(gpu)", {4}, "S0(gpu)"},
                {{0, 4}, "S1(gpu)", {2, 0}, "R"}};
    for (const auto& row : rows) {
      const DTensor y = Reshape(Place(Whole(row.shape), mesh, row.layout), row.to);
      EXPECT_EQ(y.layout().ToString(), row.result) << row.layout;
    }
    const DTensor x = Place(Whole({4, 6}), mesh, "S0(gpu)");
    EXPECT_EQ(Transpose(x, 0, 1).layout().ToString(), "S1(gpu)");
    EXPECT_EQ(Index(x, {IndexNone()}).layout().ToString(), "S1(gpu)");
    EXPECT_EQ(Index(x, {IndexSlice(), int64_t{2}}).layout().ToString(), "S0(gpu)");
  });
}

TEST(ShapeRules, TwoSplitsOfDimensionsOfOneElementKeepApart) {
  OnMesh({1, 4}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({1, 5, 1}), mesh, "S0(gpu) S1(node)");
    EXPECT_EQ(Reshape(x, {1, 5, 1}).layout(), x.layout());
    EXPECT_EQ(Reshape(x, {1, 1, 5}).layout().ToString(), "S0(gpu) S1(node)");
  });
}

TEST(ShapeRules, RefusalsSayWhatWasAskedAndWhatToDo) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({4, 6}), mesh, "S0(gpu)"),
                  f = Place(Whole({4, 6}), mesh, "F(gpu)");
    ExpectError(
        [&] {
          Reshape(x, {3, 8});
        },
        "reshape of S0(gpu) of (4, 6) on Mesh(node=2, gpu=2) to (3, 8): no layout describes");
    ExpectError([&] { Reshape(x, {5, 5}); }, "(5, 5) does not fit the 24 elements of (4, 6)");
    ExpectError([&] { Reshape(x, {-1, -1}); }, "does not fit");
    ExpectError([&] { Transpose(f, 0, 1); }, "transpose of F(gpu) of (4, 6)");
    ExpectError([&] { Transpose(x, 0, 2); }, "dimension 2 is outside shape (4, 6)");
    ExpectError([&] { Index(x, {int64_t{0}}); }, "index [0] takes a part of dimension 0");
    ExpectError([&] { Index(x, {IndexSlice(), int64_t{6}}); }, "index 6 is out of range");
    ExpectError([&] { Index(x, {IndexSlice(), IndexSlice{{}, {}, -1}}); }, "step -1");
    ExpectError(
        [&] {
          Index(x, {IndexSlice(), IndexSlice(), int64_t{0}});
        },
        "3 indices and 0 ellipses for a tensor of shape (4, 6)");
    ExpectError([&] { Index(f, {int64_t{0}}); }, "takes a part of a flat shard");
  });
}

}  // namespace
}  // namespace lins::testing
