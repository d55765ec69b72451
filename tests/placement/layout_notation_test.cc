// The notation of layouts: what prints as what, and what is refused, pointing at the character.
#include <gtest/gtest.h>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "placement/layout.h"

namespace lins {
namespace {

class LayoutNotationTest : public ::testing::Test {
 protected:
  std::string Print(absl::string_view text, Shape shape = {10, 4}) const {
    const auto layout = Layout::Parse(text, shape, mesh_);
    return layout.ok() ? layout->ToString() : std::string(layout.status().message());
  }
  const Mesh mesh_ = *Mesh::Create({2, 4}, {"node", "gpu"});
};

TEST_F(LayoutNotationTest, PrintsInOneNormalForm) {
  EXPECT_EQ(Print("R"), "R");
  EXPECT_EQ(Print("  R "), "R");
  EXPECT_EQ(Print("S0(gpu,node)"), "S0(gpu,node)");
  EXPECT_EQ(Print("S1(gpu) S0(node)"), "S0(node) S1(gpu)");
  EXPECT_EQ(Print(" S 0 ( gpu : 2 @ 2 , node )  + sum ( gpu : 2 ) "),
            "S0(gpu:2@2,node) +sum(gpu:2)");
  EXPECT_EQ(Print("S0(gpu:4@1)"), "S0(gpu)");
  EXPECT_EQ(Print("+max(gpu) +sum(node)"), "+sum(node) +max(gpu)");
  EXPECT_EQ(Print("O(gpu,node; 7)"), "O(gpu,node; 7)");
}

TEST_F(LayoutNotationTest, PartialAxesHaveNoOrderAndMerge) {
  EXPECT_EQ(Print("+sum(gpu,node)"), "+sum(node,gpu)");
  EXPECT_EQ(Print("+sum(gpu) +sum(node)"), "+sum(node,gpu)");
  EXPECT_EQ(Print("+sum(gpu:2,gpu:2@2)"), "+sum(gpu)");
  EXPECT_EQ(Print("+sum(gpu:1)"), "R");
}

TEST_F(LayoutNotationTest, NestedSplitsAreNotMerged) {
  EXPECT_EQ(Print("S0(gpu:2@2,gpu:2)"), "S0(gpu:2@2,gpu:2)");
}

TEST_F(LayoutNotationTest, FlatWindowIsLeftOutWhenItIsTheWholeBuffer) {
  EXPECT_EQ(Print("F(gpu)"), "F(gpu)");
  EXPECT_EQ(Print("F(gpu; 0/40)"), "F(gpu)");
  EXPECT_EQ(Print("F(gpu,node;0 / 40)"), "F(gpu,node)");
  EXPECT_EQ(Print("F(gpu; 0/44)"), "F(gpu; 0/44)");
  EXPECT_EQ(Print("F(gpu; 4/44)"), "F(gpu; 4/44)");
  EXPECT_EQ(Print("F(gpu; 0/4)", {3}), "F(gpu)");
  EXPECT_EQ(Print("F(gpu; 0/0)", {0}), "F(gpu)");
}

struct Bad {
  std::string text, message;
  int caret;  // -1: the whole layout is wrong
};

TEST_F(LayoutNotationTest, ErrorsPointAtTheCharacter) {
  for (const Bad& bad : std::vector<Bad>{
           {"", "an empty layout: write R for replicated", 0},
           {"   ", "an empty layout", 3},
           {"R S0(gpu)", "R stands alone", 2},
           {"S0(gpu) R", "expected S<dim>(axes), F(axes), O(axes; owner), +op(axes) or R", 8},
           {"Q0(gpu)", "expected S<dim>(axes)", 0},
           {"s0(gpu)", "expected S<dim>(axes)", 0},
           {"S(gpu)", "expected the dimension to shard, a whole number", 1},
           {"S-1(gpu)", "expected the dimension to shard", 1},
           {"S2(gpu)", "S2 is outside the tensor's dimensions: shape (10, 4) has 2", 0},
           {"S99999999999(gpu)", "is outside the tensor's dimensions", 0},
           {"S0", "expected '('", 2},
           {"S0()", "expected an axis: Mesh(node=2, gpu=4) has node, gpu", 3},
           {"S0(gpu", "expected ')'", 6},
           {"S0(gpu;1)", "expected ')'", 6},
           {"S0(tpu)", "unknown axis 'tpu'", 3},
           {"S0(node,tpu)", "unknown axis 'tpu'", 8},
           {"S0(gpu:3)", "sub-axis gpu:3@1 does not divide axis 'gpu' of size 4", 3},
           {"S0(gpu,gpu)", "axis 'gpu' is used twice", 7},
           {"S0(gpu) S1(gpu)", "axis 'gpu' is used twice", 8},
           {"S0(gpu:2) +sum(gpu)", "axis 'gpu' is used twice: gpu:2 and gpu share coordinates", 10},
           {"S0(gpu) S0(node)", "S0 appears twice: write the axes in one term", 8},
           {"S0(gpu)S1(node)", "expected a space between terms", 7},
           {"+mean(gpu)", "unknown reduction 'mean': sum, avg, min, max, product", 0},
           {"S0(node) +(gpu)", "unknown reduction ''", 9},
           {"+sum", "expected '('", 4},
           {"+sum()", "expected an axis", 5},
           {"F(gpu; 0)", "expected '/'", 8},
           {"F(gpu; /40)", "expected the offset of the window, a whole number", 7},
           {"F(gpu; 0/)", "expected the total of the buffer, a whole number", 9},
           {"F(gpu; 0/42)", "F's total 42 is not a multiple of its group of 4", 0},
           {"F(gpu; 4/40)", "F's window [4, 44) of shape (10, 4) does not fit its total of 40", 0},
           {"F(gpu) F(node)", "F appears twice", 7},
           {"F(gpu) S0(node)", "a layout has S terms, or one F, or one O, never a mixture", 7},
           {"O(gpu)", "expected ';'", 5},
           {"O(gpu; )", "expected the owner's index, a whole number", 7},
           {"O(gpu; 4)", "owner 4 is outside its group of 4", 7},
           {"O(gpu; 0) O(node; 0)", "O appears twice", 10},
           {"S0(node) O(gpu; 0)", "never a mixture", 9},
           {"F(gpu) O(node; 0)", "never a mixture", 7}}) {
    const auto layout = Layout::Parse(bad.text, {10, 4}, mesh_);
    ASSERT_FALSE(layout.ok()) << bad.text;
    const std::string pointer = "\n  " + bad.text + "\n  " + std::string(bad.caret, ' ') + "^";
    EXPECT_TRUE(absl::IsInvalidArgument(layout.status()));
    EXPECT_TRUE(absl::StrContains(layout.status().message(), bad.message)) << layout.status();
    EXPECT_TRUE(absl::EndsWith(layout.status().message(), pointer)) << layout.status();
  }
}

TEST_F(LayoutNotationTest, ANegativeSizeIsRefused) {
  EXPECT_EQ(Print("R", {2, -1}), "negative size in shape (2, -1)");
  EXPECT_EQ(Print("F(gpu)", {-1}), "negative size in shape (-1,)");
}

TEST_F(LayoutNotationTest, CreateRefusesTermsThatTheNotationCannotWrite) {
  const auto refuse = [&](Terms terms, Shape shape = {10, 4}) {
    const auto layout = Layout::Create(std::move(terms), shape, mesh_);
    return layout.ok() ? layout->ToString() : std::string(layout.status().message());
  };
  const Axes gpu = *mesh_.ParseAxes("gpu");
  Terms t;
  t.shards = {{0, {}}};
  EXPECT_EQ(refuse(t), "S0() names no axis");
  t.shards = {{-1, gpu}};
  EXPECT_TRUE(absl::StrContains(refuse(t), "S-1 is outside")) << refuse(t);
  t.shards = {{1, gpu}};
  t.flat = FlatTerm{*mesh_.ParseAxes("node"), 0, 40};
  EXPECT_TRUE(absl::StrContains(refuse(t), "never a mixture")) << refuse(t);
  t = Terms();
  t.owned = OwnedTerm{gpu, -1};
  EXPECT_EQ(refuse(t), "owner -1 is outside its group of 4");
  t.owned = OwnedTerm{gpu, 0};
  t.partials = {{ReduceOp::kSum, gpu}};
  EXPECT_TRUE(absl::StrContains(refuse(t), "axis 'gpu' is used twice")) << refuse(t);
  t = Terms();
  t.flat = FlatTerm{gpu, -4, 40};
  EXPECT_TRUE(absl::StrContains(refuse(t), "does not fit")) << refuse(t);
}

TEST_F(LayoutNotationTest, EqualityAndHashAreOfTheNormalForm) {
  const auto parse = [&](absl::string_view text, Shape shape = {10, 4}) {
    return *Layout::Parse(text, shape, mesh_);
  };
  const Layout a = parse("S0(node) +sum(gpu:2@2,gpu:2)");
  const Layout b = parse("+sum(gpu) S0(node)");
  EXPECT_EQ(a, b);
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
  for (const Layout& other :
       {parse("S0(node)"), parse("S1(node) +sum(gpu)"), parse("S0(node) +max(gpu)"),
        parse("S0(node) +sum(gpu)", {10, 5}),
        *Layout::Parse("S0(node) +sum(gpu)", {10, 4}, *Mesh::Create({4, 4}, {"node", "gpu"}))}) {
    EXPECT_FALSE(a == other) << Describe(other);
  }
}

TEST_F(LayoutNotationTest, DescribeNamesShapeAndMesh) {
  EXPECT_EQ(Describe(*Layout::Parse("S0(gpu)", {3}, mesh_)),
            "S0(gpu) of (3,) on Mesh(node=2, gpu=4)");
  EXPECT_EQ(ShapeToString({}), "()");
}

}  // namespace
}  // namespace lins
