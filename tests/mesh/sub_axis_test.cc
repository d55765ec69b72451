// Sub-axes: their notation, which of them may stand together, and what is refused.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "mesh/mesh.h"
#include "tests/mesh/brute_force.h"

namespace lins {
namespace {

using testing::AllLists;
using testing::AllSubAxes;
using testing::MakeMesh;
using testing::SmallMeshes;
using testing::SubCoordinates;

TEST(SubAxisTest, NotationRoundTrips) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 3)) {
      const std::string text = mesh.AxesToString(axes);
      const auto parsed = mesh.ParseAxes(text);
      ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
      EXPECT_EQ(*parsed, axes) << text;
    }
  }
}

TEST(SubAxisTest, WritesOnlyWhatIsNeeded) {
  const Mesh mesh = *Mesh::Create({4, 8}, {"node", "gpu"});
  const auto text = [&](absl::string_view in) { return mesh.AxesToString(*mesh.ParseAxes(in)); };
  EXPECT_EQ(text("gpu:8@1,node"), "gpu,node");
  EXPECT_EQ(text(" gpu : 2 @ 4 , gpu : 4 "), "gpu:2@4,gpu:4");
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text("  "), "");
}

// True when ranks that differ along `a` only have the same coordinate along `b`.
bool Keeps(const Mesh& mesh, const SubAxis& a, const SubAxis& b) {
  for (const std::vector<int64_t>& group : mesh.Groups(Axes{a})) {
    for (int64_t rank : group) {
      if (SubCoordinates(mesh, {b}, rank) != SubCoordinates(mesh, {b}, group[0])) return false;
    }
  }
  return true;
}

TEST(SubAxisTest, TwoMayStandTogetherWhenMovingAlongOneKeepsTheOther) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const SubAxis& a : AllSubAxes(mesh)) {
      for (const SubAxis& b : AllSubAxes(mesh)) {
        if (a.size == 1 || b.size == 1) continue;
        const bool independent = Keeps(mesh, a, b) && Keeps(mesh, b, a);
        const std::string pair = mesh.AxesToString(Axes{a, b}) + " of " + mesh.ToString();
        EXPECT_EQ(Overlap(a, b), !independent) << pair;
        EXPECT_EQ(mesh.Validate(Axes{a, b}).ok(), independent) << pair;
      }
    }
  }
}

TEST(SubAxisTest, AnAxisOfOneIsNamedOnce) {
  const Mesh mesh = MakeMesh({1, 4});
  EXPECT_TRUE(mesh.ParseAxes("x,y").ok());
  EXPECT_FALSE(mesh.ParseAxes("x,x").ok());
}

struct BadAxes {
  std::string text, message;
  size_t caret;
};

TEST(SubAxisTest, ErrorsPointAtTheCharacter) {
  const Mesh mesh = *Mesh::Create({4, 8}, {"node", "gpu"});
  for (const BadAxes& bad : std::vector<BadAxes>{
           {"gpx", "unknown axis 'gpx': Mesh(node=4, gpu=8) has node, gpu", 0},
           {"node,", "expected an axis: Mesh(node=4, gpu=8) has node, gpu", 5},
           {",gpu", "expected an axis", 0},
           {"gpu,,node", "expected an axis", 4},
           {"gpu:", "expected the size of a sub-axis, a whole number", 4},
           {"gpu:-2", "expected the size of a sub-axis", 4},
           {"gpu:99999999999999999999", "expected the size of a sub-axis", 4},
           {"gpu:2@", "expected the stride of a sub-axis, a whole number", 6},
           {"gpu:2@x", "expected the stride of a sub-axis", 6},
           {"gpu:3", "sub-axis gpu:3@1 does not divide axis 'gpu' of size 8", 0},
           {"node,gpu:16", "sub-axis gpu:16@1 does not divide axis 'gpu' of size 8", 5},
           {"gpu:0", "sub-axis gpu:0@1 does not divide", 0},
           {"gpu:4@4", "sub-axis gpu:4@4 does not divide", 0},
           {"gpu:2@3", "sub-axis gpu:2@3 does not divide", 0},
           {"gpu:2@0", "sub-axis gpu:2@0 does not divide", 0},
           {"gpu:9223372036854775807@9223372036854775807", "does not divide axis 'gpu'", 0},
           {"gpu,gpu", "axis 'gpu' is used twice: gpu and gpu share coordinates", 4},
           {"gpu:4,node,gpu:4@2", "axis 'gpu' is used twice: gpu:4 and gpu:4@2", 11},
           {"gpu node", "unexpected text after the axes", 4},
           {"gpu:2@4x", "unexpected text after the axes", 7}}) {
    const auto axes = mesh.ParseAxes(bad.text);
    ASSERT_FALSE(axes.ok()) << bad.text;
    const std::string pointer = "\n  " + bad.text + "\n  " + std::string(bad.caret, ' ') + "^";
    EXPECT_TRUE(absl::StrContains(axes.status().message(), bad.message)) << axes.status();
    EXPECT_TRUE(absl::EndsWith(axes.status().message(), pointer)) << axes.status();
  }
}

TEST(SubAxisTest, ValidateRefusesAxesThatTheMeshLacks) {
  const Mesh mesh = MakeMesh({2, 2});
  for (int axis : {-1, 2}) {
    EXPECT_EQ(mesh.Validate(Axes{{axis, 2, 1}}).message(),
              absl::StrCat("axis number ", axis, " is outside Mesh(x=2, y=2)"));
  }
}

}  // namespace
}  // namespace lins
