// Set operations on sub-axes, judged by the coordinates that ranks have along them.
#include <gtest/gtest.h>

#include <map>

#include "mesh/mesh.h"
#include "tests/mesh/brute_force.h"

namespace lins {
namespace {

using testing::AllLists;
using testing::MakeMesh;
using testing::SmallMeshes;
using testing::SubCoordinates;

// True when a rank's coordinates along `axes` tell those along `inner`.
bool Tells(const Mesh& mesh, const Axes& axes, const Axes& inner) {
  std::map<std::vector<int64_t>, std::vector<int64_t>> seen;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const auto value = SubCoordinates(mesh, inner, rank);
    if (seen.try_emplace(SubCoordinates(mesh, axes, rank), value).first->second != value)
      return false;
  }
  return true;
}

Axes Union(Axes a, const Axes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(AxesSetTest, CanonicalNamesTheSameCoordinatesSlowToFast) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 3)) {
      const Axes c = Canonical(mesh, axes);
      ASSERT_TRUE(mesh.Validate(c).ok());
      ASSERT_TRUE(Tells(mesh, axes, c) && Tells(mesh, c, axes)) << mesh.AxesToString(axes);
      ASSERT_EQ(Canonical(mesh, c), c);
      for (size_t i = 1; i < c.size(); ++i) {
        ASSERT_TRUE(c[i - 1].axis < c[i].axis ||
                    (c[i - 1].axis == c[i].axis && c[i - 1].stride > c[i].stride * c[i].size))
            << mesh.AxesToString(c);
      }
    }
  }
}

TEST(AxesSetTest, EqualSetsHaveOneCanonicalForm) {
  for (const Mesh& mesh : SmallMeshes()) {
    std::map<std::string, Axes> forms;
    for (const Axes& axes : AllLists(mesh, 3)) {
      std::string key;  // the partition of the ranks, and the axes of size 1 that are named
      std::map<std::vector<int64_t>, size_t> classes;
      for (int64_t r = 0; r < mesh.size(); ++r) {
        key +=
            std::to_string(
                classes.try_emplace(SubCoordinates(mesh, axes, r), classes.size()).first->second) +
            " ";
      }
      for (int i = 0; i < mesh.ndim(); ++i) {
        for (const SubAxis& a : axes) key += a.axis == i && a.size == 1 ? mesh.axes()[i] : "";
      }
      const Axes c = Canonical(mesh, axes);
      ASSERT_EQ(forms.try_emplace(key, c).first->second, c) << mesh.AxesToString(axes);
    }
  }
}

TEST(AxesSetTest, ContainsMeansThatCoordinatesAreKnown) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 2)) {
      for (const Axes& inner : AllLists(mesh, 2)) {
        bool named = true;  // an axis of size 1 tells nothing and is contained where it is named
        for (const SubAxis& a : inner) {
          if (a.size == 1) named = named && std::find(axes.begin(), axes.end(), a) != axes.end();
        }
        ASSERT_EQ(Contains(mesh, axes, inner), named && Tells(mesh, axes, inner))
            << mesh.AxesToString(inner) << " in " << mesh.AxesToString(axes);
      }
    }
  }
}

TEST(AxesSetTest, SubtractLeavesTheOtherCoordinates) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 2)) {
      for (const Axes& remove : AllLists(mesh, 2)) {
        if (!Contains(mesh, axes, remove)) continue;
        const Axes rest = Subtract(mesh, axes, remove);
        const Axes both = Union(rest, remove);
        ASSERT_TRUE(mesh.Validate(both).ok()) << mesh.AxesToString(both);
        ASSERT_TRUE(Tells(mesh, axes, both) && Tells(mesh, both, axes))
            << mesh.AxesToString(axes) << " without " << mesh.AxesToString(remove);
        ASSERT_EQ(Canonical(mesh, rest), rest);
        ASSERT_EQ(Canonical(mesh, both), Canonical(mesh, axes));
      }
    }
  }
}

TEST(AxesSetTest, ComplementCompletesTheMesh) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Axes& axes : AllLists(mesh, 3)) {
      const Axes rest = Complement(mesh, axes);
      ASSERT_TRUE(mesh.Validate(Union(axes, rest)).ok());
      ASSERT_EQ(Mesh::GroupSize(axes) * Mesh::GroupSize(rest), mesh.size());
      ASSERT_EQ(Canonical(mesh, Union(axes, rest)), mesh.AllAxes());
    }
  }
}

TEST(AxesSetTest, AHoleInTheMiddleLeavesTwoParts) {
  const Mesh mesh = MakeMesh({12});
  EXPECT_EQ(mesh.AxesToString(Complement(mesh, *mesh.ParseAxes("x:2@2"))), "x:3@4,x:2");
}

TEST(AxesSetTest, APartOfSizeOneIsNothing) {
  const Mesh mesh = MakeMesh({4});
  EXPECT_TRUE(Canonical(mesh, *mesh.ParseAxes("x:1")).empty());
  EXPECT_TRUE(Contains(mesh, {}, *mesh.ParseAxes("x:1@2")));
}

}  // namespace
}  // namespace lins
