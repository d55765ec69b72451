// Received bytes against the lower bound, over all pairs of a set of layouts: 1 where sizes are
// even powers of two, but for the kinds of pairs that docs/redistribution.md explains. The tables
// there are the ones made here.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"
#include "placement/reachable.h"
#include "placement/redistribution.h"
#include "step_graph.h"

namespace lins {
namespace {

const std::vector<const char*> kLayouts = {"R",
                                           "S0(a)",
                                           "S0(b)",
                                           "S0(a,b)",
                                           "S0(b,a)",
                                           "S1(a)",
                                           "S0(a) S1(b)",
                                           "F(a)",
                                           "F(b,a)",
                                           "O(a; 1)",
                                           "O(b,a; 2)",
                                           "+sum(a)",
                                           "+sum(b)",
                                           "+sum(a,b)",
                                           "+avg(a)",
                                           "+max(b)",
                                           "S0(a) +sum(b)",
                                           "S0(b) +sum(a)",
                                           "S1(b) +sum(a)",
                                           "F(a) +sum(b)",
                                           "O(a; 0) +sum(b)",
                                           "S0(b) +max(a)"};

// The kinds of pairs. In all but the first two the ratio may be above 1, for the reason in
// docs/redistribution.md under the same letter.
enum Kind { kComplete, kNested, kElsewhere, kOwner, kStays, kBegins };
constexpr const char* kNames[] = {
    "nothing is reduced",        "reduced where it lies",  "(a) reduced to other ranks' shards",
    "(b) reduced with an owner", "(c) a sum that is left", "(d) avg, min, max that begin"};

Axes PendingOf(const Layout& l, ReduceOp op) {
  for (const PartialTerm& p : l.terms().partials) {
    if (p.op == op) return p.axes;
  }
  return {};
}

Kind KindOf(const Layout& src, const Layout& dst) {
  const Mesh& mesh = src.mesh();
  for (const PartialTerm& p : dst.terms().partials) {
    if (p.op != ReduceOp::kSum && !Contains(mesh, PendingOf(src, p.op), p.axes)) return kBegins;
  }
  if (dst.IsPartial()) return kStays;
  if (!src.IsPartial()) return kComplete;
  if (src.terms().owned || dst.terms().owned) return kOwner;
  const Axes more = graph::Lengthened(src, dst);
  const bool same =
      src.terms().shards == dst.terms().shards && src.terms().flat == dst.terms().flat;
  const bool longer = !more.empty() && Contains(mesh, src.PartialAxes(), more);
  const bool shorter = !graph::Lengthened(dst, src).empty();
  return same || longer || shorter ? kNested : kElsewhere;
}

struct Pair {
  Layout src, dst;
  int64_t received, bound;
  Kind kind;
  bool AtBound() const { return received == bound; }
  std::string Ratio() const {
    if (AtBound()) return "1";
    if (bound == 0) return "inf";
    return absl::StrFormat("%.3g", static_cast<double>(received) / static_cast<double>(bound));
  }
};

std::optional<Pair> Measure(const Layout& src, const Layout& dst) {
  if (!CheckReachable(src, dst).ok()) return std::nullopt;
  const RedistributionPlan plan = *PlanRedistribution(src, dst, 1);
  return Pair{src, dst, plan.recv_bytes, plan.lower_bound_bytes, KindOf(src, dst)};
}

struct World {
  std::vector<int64_t> mesh;
  Shape shape;
  std::vector<std::optional<Pair>> Pairs() const {
    const Mesh m = *Mesh::Create(mesh, {"a", "b"});
    std::vector<std::optional<Pair>> out;
    for (const char* from : kLayouts) {
      for (const char* to : kLayouts) {
        out.push_back(Measure(ValueOrThrow(Layout::Parse(from, shape, m)),
                              ValueOrThrow(Layout::Parse(to, shape, m))));
      }
    }
    return out;
  }
};

const World kEven[] = {{{2, 2}, {8, 4}}, {{4, 2}, {16, 16}}, {{2, 4}, {16, 8}}, {{4, 4}, {32, 16}}};
const World kUneven = {{2, 3}, {7, 5}};

std::string MeshAndShape(const World& world) {
  return absl::StrCat(absl::StrJoin(world.mesh, "x"), " ", ShapeToString(world.shape));
}

// One row a source, one column a destination.
std::string Matrix(const World& world) {
  std::string out = absl::StrFormat("%-18s", MeshAndShape(world));
  for (size_t i = 0; i < kLayouts.size(); ++i) absl::StrAppendFormat(&out, "%5d", i + 1);
  const auto pairs = world.Pairs();
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i % kLayouts.size() == 0) {
      const size_t row = i / kLayouts.size();
      absl::StrAppendFormat(&out, "\n%2d %-15s", row + 1, kLayouts[row]);
    }
    absl::StrAppendFormat(&out, "%5s", pairs[i] ? pairs[i]->Ratio() : ".");
  }
  return out;
}

// One row a kind of pairs.
std::string Summary(const std::vector<World>& worlds) {
  std::string out = "| pairs |";
  for (const World& w : worlds) absl::StrAppend(&out, " ", MeshAndShape(w), " |");
  absl::StrAppend(&out, "\n|---|");
  for (size_t i = 0; i < worlds.size(); ++i) absl::StrAppend(&out, "---|");
  for (Kind kind : {kComplete, kNested, kElsewhere, kOwner, kStays, kBegins}) {
    absl::StrAppend(&out, "\n| ", kNames[kind], " |");
    for (const World& w : worlds) {
      int64_t all = 0, at = 0;
      bool unbounded = false;
      double worst = 1;
      for (const auto& p : w.Pairs()) {
        if (!p || p->kind != kind) continue;
        ++all;
        at += p->AtBound();
        unbounded |= !p->AtBound() && p->bound == 0;
        if (p->bound > 0) {
          worst = std::max(worst, static_cast<double>(p->received) / static_cast<double>(p->bound));
        }
      }
      absl::StrAppendFormat(&out, " %d of %d at 1, worst %.3g%s |", at, all, worst,
                            unbounded ? ", inf" : "");
    }
  }
  return out;
}

TEST(RatioTest, IsOneForEvenPowersOfTwoButForTheKindsThatTheDocsExplain) {
  for (const World& world : kEven) {
    for (const auto& p : world.Pairs()) {
      if (!p || p->AtBound()) continue;
      EXPECT_NE(p->kind, kComplete) << Describe(p->src) << " -> " << p->dst.ToString();
      EXPECT_NE(p->kind, kNested) << Describe(p->src) << " -> " << p->dst.ToString();
    }
  }
}

TEST(RatioTest, IsOneBetweenCompleteLayoutsOfAnyShape) {
  for (const Shape& shape : {Shape{7, 5}, Shape{3, 1}, Shape{0, 4}, Shape{9, 9}}) {
    for (const auto& p : World{{2, 3}, shape}.Pairs()) {
      if (p && p->kind == kComplete) {
        EXPECT_TRUE(p->AtBound()) << Describe(p->src) << " -> " << p->dst.ToString();
      }
    }
  }
}

// Three axes, of which one is in no layout or in all of them.
TEST(RatioTest, IsOneForEvenPowersOfTwoOnThreeAxes) {
  const Mesh mesh = *Mesh::Create({2, 2, 2}, {"a", "b", "c"});
  const std::vector<const char*> texts = {"R",
                                          "S0(a)",
                                          "S0(c,b,a)",
                                          "S0(a) S1(c)",
                                          "S1(b,c)",
                                          "F(c,b)",
                                          "O(a,b; 3)",
                                          "+sum(a,b,c)",
                                          "+sum(a)",
                                          "S0(c) +sum(a,b)",
                                          "S0(c,b)",
                                          "S0(c)",
                                          "S0(c,b) +sum(a)",
                                          "F(c) +sum(a)",
                                          "F(c,b,a)",
                                          "S1(c) +sum(b)",
                                          "S1(c,b)",
                                          "S1(c) S0(b)",
                                          "F(c)",
                                          "F(c) +sum(a,b)"};
  for (const char* from : texts) {
    for (const char* to : texts) {
      const auto p = Measure(ValueOrThrow(Layout::Parse(from, {16, 8}, mesh)),
                             ValueOrThrow(Layout::Parse(to, {16, 8}, mesh)));
      if (!p || p->AtBound()) continue;
      EXPECT_NE(p->kind, kComplete) << Describe(p->src) << " -> " << p->dst.ToString();
      EXPECT_NE(p->kind, kNested) << Describe(p->src) << " -> " << p->dst.ToString();
    }
  }
}

TEST(RatioTest, TheDocsShowTheseTables) {
  std::ifstream file("docs/redistribution.md");
  ASSERT_TRUE(file) << "run from the root of the repository";
  std::stringstream docs;
  docs << file.rdbuf();
  for (const std::string& table :
       {Matrix(kEven[0]), Summary({kEven[0], kEven[1], kEven[2], kUneven})}) {
    EXPECT_NE(docs.str().find(table), std::string::npos)
        << "docs/redistribution.md lacks this table:\n"
        << table;
  }
}

}  // namespace
}  // namespace lins
