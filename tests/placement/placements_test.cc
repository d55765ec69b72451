// The placement-list view of layouts.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "placement/layout.h"

namespace lins {
namespace {

const Mesh& TwoByTwoByThree() {
  static const Mesh* mesh = new Mesh(*Mesh::Create({2, 2, 3}, {"a", "b", "c"}));
  return *mesh;
}

TEST(PlacementsTest, EveryListOfPlacementsRoundTrips) {
  const std::vector<Placement> choices = {Replicate{}, Shard{0}, Shard{1}, Partial{ReduceOp::kSum},
                                          Partial{ReduceOp::kMax}};
  for (const Placement& x : choices) {
    for (const Placement& y : choices) {
      for (const Placement& z : choices) {
        const std::vector<Placement> list = {x, y, z};
        const Layout layout = *Layout::FromPlacements(list, {6, 5}, TwoByTwoByThree());
        EXPECT_EQ(*layout.Placements(), list) << layout.ToString();
        EXPECT_EQ(*Layout::Parse(layout.ToString(), {6, 5}, TwoByTwoByThree()), layout);
      }
    }
  }
}

TEST(PlacementsTest, AxesThatShareADimensionSplitItInMeshOrder) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  EXPECT_EQ(Layout::FromPlacements({Shard{0}, Shard{0}}, {8}, mesh)->ToString(), "S0(node,gpu)");
}

TEST(PlacementsTest, NegativeDimensionsCountFromTheEnd) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  EXPECT_EQ(Layout::FromPlacements({Shard{-1}, Shard{-2}}, {8, 4}, mesh)->ToString(),
            "S0(gpu) S1(node)");
}

std::string Why(const absl::Status& status) { return std::string(status.message()); }

TEST(PlacementsTest, RefusesAWrongNumberOfPlacementsOrDimension) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  EXPECT_EQ(Why(Layout::FromPlacements({Shard{0}}, {8}, mesh).status()),
            "1 placements for Mesh(node=2, gpu=4): give one per axis, 2");
  for (int dim : {1, -2}) {
    EXPECT_EQ(
        Why(Layout::FromPlacements({Shard{dim}, Replicate{}}, {8}, mesh).status()),
        absl::StrCat("Shard(", dim, ") is outside the tensor's dimensions: shape (8,) has 1"));
  }
  EXPECT_FALSE(Layout::FromPlacements({Shard{0}, Replicate{}}, {}, mesh).ok());
}

TEST(PlacementsTest, LayoutsThatNoListCanSayAreRefusedWithTheReason) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"node", "gpu"});
  const auto why = [&](absl::string_view text) {
    return Why(Layout::Parse(text, {8}, mesh)->Placements().status());
  };
  EXPECT_EQ(why("F(gpu)"),
            "layout F(gpu) has no placement list: F and O are not placements of single axes");
  EXPECT_EQ(why("O(gpu; 1)"),
            "layout O(gpu; 1) has no placement list: F and O are not placements of single axes");
  EXPECT_EQ(why("S0(gpu:2)"),
            "layout S0(gpu:2) has no placement list: it splits over part of an axis");
  EXPECT_EQ(why("+sum(gpu:2)"),
            "layout +sum(gpu:2) has no placement list: it is partial over part of an axis");
  EXPECT_EQ(why("S0(gpu,node)"),
            "layout S0(gpu,node) has no placement list: a dimension is split in another order than "
            "the mesh's");
}

TEST(PlacementsTest, PrintLikeTheirConstructors) {
  EXPECT_EQ(ToString(Placement(Shard{1})), "Shard(1)");
  EXPECT_EQ(ToString(Placement(Replicate{})), "Replicate()");
  EXPECT_EQ(ToString(Placement(Partial{ReduceOp::kAvg})), "Partial('avg')");
}

}  // namespace
}  // namespace lins
