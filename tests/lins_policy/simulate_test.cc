// The simulated step: by hand where that is possible, its own rules always, and close to the window
// formula that plans are chosen by.
#include "lins_policy/simulate.h"

#include <gtest/gtest.h>

#include <map>

#include "lins_policy/solve.h"
#include "nlohmann/json.hpp"
#include "problems.h"

namespace lins {
namespace {

std::vector<SimulatedUnit> Alike(int n, Moments<double> seconds, ComputeSeconds compute) {
  std::vector<SimulatedUnit> out;
  for (int i = 0; i < n; ++i) out.push_back({absl::StrCat("u", i), seconds, compute});
  return out;
}

double Step(const std::vector<SimulatedUnit>& units, int64_t m, double slowdown = 1,
            OverlapOptions options = {}) {
  return SimulateStep(units, m, slowdown, options).step;
}

const Moments<double> kUnit = {
    .gather = 1, .regather = 2, .scatter = 0, .accumulate = 4, .reduce = 8, .update = 16};

TEST(SimulateTest, OneUnitHidesNothingButItsComputeCounts) {
  // Gather, forward, gather, backward, reduce, update: all one after another.
  EXPECT_DOUBLE_EQ(Step(Alike(1, kUnit, {3, 5}), 1), 1 + 3 + 2 + 5 + 8 + 16);
}

TEST(SimulateTest, WithoutOverlapEverythingAddsUp) {
  OverlapOptions none;
  none.overlap = false;
  for (const int64_t m : {1, 2, 5}) {
    EXPECT_DOUBLE_EQ(Step(Alike(4, kUnit, {3, 5}), m, 1, none),
                     4.0 * (m * (3 + 5 + 1 + 2) + (m - 1) * 4 + 8 + 16));
  }
}

TEST(SimulateTest, ComputeAlone) {
  const Simulation s = SimulateStep(Alike(3, {}, {3, 5}), 2, 2.0, {});
  EXPECT_DOUBLE_EQ(s.step, 2 * 3 * 8.0);
  EXPECT_DOUBLE_EQ(s.compute, s.step);
  EXPECT_DOUBLE_EQ(s.exposed(), 0);
  EXPECT_EQ(s.link_busy, 0);
  EXPECT_EQ(s.events.size(), 2u * 3 * 2);
}

TEST(SimulateTest, CommunicationAlone) {
  const Simulation s = SimulateStep(Alike(3, kUnit, {0, 0}), 1, 2.0, {});
  EXPECT_DOUBLE_EQ(s.step, 3 * (1 + 2 + 8 + 16.0));
  EXPECT_DOUBLE_EQ(s.link_busy, s.step);
}

TEST(SimulateTest, UnderMuchComputeOnlyTheEdgesShow) {
  // The first unit's gather and last reduction and its update, the last unit's second gather.
  EXPECT_DOUBLE_EQ(Step(Alike(6, kUnit, {100, 100}), 1), 6 * 200.0 + 1 + 8 + 16 + 2);
  // Of more micro-batches: their first gathers as well; reductions pass under the next forward.
  EXPECT_DOUBLE_EQ(Step(Alike(6, kUnit, {100, 100}), 3), 3 * 6 * 200.0 + 3 * 1 + 8 + 16 + 3 * 2);
}

TEST(SimulateTest, UnderLittleComputeTheLinksDecide) {
  // 6 gathers, 6 second gathers, 6 reductions, 6 updates; the first update and gather, and nothing
  // of compute shows but what no message can pass beside.
  const double links = 6 * (1 + 2 + 8 + 16.0);
  const double step = Step(Alike(6, kUnit, {0.01, 0.01}), 1);
  EXPECT_GE(step, links);
  EXPECT_LE(step, links + 6 * 0.02);
}

TEST(SimulateTest, SlowedComputeTakesLonger) {
  // One unit gathered ahead under a forward of 10 at half speed for 4 s: 12 s.
  Moments<double> gather_only = {.gather = 4};
  EXPECT_DOUBLE_EQ(Step(Alike(2, gather_only, {10, 0}), 1, 2.0), 4 + (4 + 8.0) + 10);
}

// The rules of simulate.h, on every event of a simulation.
void ExpectRules(const Simulation& s, const std::vector<SimulatedUnit>& units, int64_t m) {
  double link = -1, compute = -1;  // when they were last busy
  double forward_ends = 0;
  std::map<std::string, double> updated, gathered;
  double reduced = 0, computed = 0;
  std::map<std::string, int> count;
  for (const SimulatedEvent& e : s.events) {
    EXPECT_LE(e.start, e.end);
    EXPECT_LE(e.end, s.step + 1e-9);
    double& busy = e.on_link ? link : compute;
    EXPECT_GE(e.start, busy - 1e-9) << e.what << " " << e.unit;
    busy = e.end;
    ++count[e.what];
    if (e.what == "update") updated[e.unit] = e.end;
    if (e.what == "gather" && e.micro_batch == 0 && updated.count(e.unit) > 0) {
      EXPECT_GE(e.start, updated[e.unit] - 1e-9) << e.unit;
    }
    if (e.what == "forward" && e.micro_batch == 0 && updated.count(e.unit) > 0) {
      EXPECT_GE(e.start, updated[e.unit] - 1e-9) << e.unit;
    }
    if (e.what == "gather" || e.what == "regather") gathered[e.unit] = e.end;
    if ((e.what == "forward" || e.what == "backward") && gathered.count(e.unit) > 0) {
      EXPECT_GE(e.start, gathered[e.unit] - 1e-9) << e.what << " " << e.unit;
    }
    if (e.what == "forward") forward_ends = e.end;
    if (e.what == "reduce") {
      reduced = std::max(reduced, e.end);
      // Its unit's backward has ended.
      for (const SimulatedEvent& b : s.events) {
        if (b.what == "backward" && b.unit == e.unit && b.micro_batch == e.micro_batch) {
          EXPECT_GE(e.start, b.end - 1e-9) << e.unit;
        }
      }
    }
    if (!e.on_link) computed = std::max(computed, e.end);
  }
  (void)forward_ends;
  EXPECT_NEAR(std::max(reduced, computed), s.step, 1e-9);
  const auto having = [&](auto what) {
    return static_cast<int>(std::count_if(units.begin(), units.end(), what));
  };
  EXPECT_EQ(count["update"], having([](const SimulatedUnit& u) { return u.seconds.update > 0; }));
  EXPECT_EQ(count["gather"],
            m * having([](const SimulatedUnit& u) { return u.seconds.gather > 0; }));
  EXPECT_EQ(count["regather"],
            m * having([](const SimulatedUnit& u) { return u.seconds.regather > 0; }));
}

TEST(SimulateTest, RulesHoldForAnyDurations) {
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    std::vector<SimulatedUnit> units;
    const int64_t n = random.Int(1, 6), m = random.Int(1, 3);
    const auto some = [&] { return random.Int(0, 3) == 0 ? 0.0 : random.Real(0, 2); };
    for (int64_t u = 0; u < n; ++u) {
      units.push_back({absl::StrCat("u", u),
                       {some(), some(), some(), some(), some(), some()},
                       {some(), some()}});
    }
    const double slowdown = random.OneOf({1.0, 1.3});
    const OverlapOptions options = {random.Int(0, 3), random.Int(0, 4) > 0, random.Coin()};
    const Simulation s = SimulateStep(units, m, slowdown, options);
    ExpectRules(s, units, m);
    // Between the busier of the two and both one after another.
    EXPECT_GE(s.step, std::max(s.compute, s.link_busy) - 1e-9);
    EXPECT_LE(s.step, s.compute + s.link_busy + 1e-9);
    if (HasFailure()) FAIL() << "instance " << i;
  }
}

TEST(SimulateTest, TracesAreJson) {
  const Simulation s = SimulateStep(Alike(2, kUnit, {3, 5}), 2, 1, {});
  const nlohmann::json trace = nlohmann::json::parse(ToChromeTrace(s));
  EXPECT_EQ(trace["traceEvents"].size(), s.events.size());
  EXPECT_EQ(trace["traceEvents"][0]["ph"], "X");
  EXPECT_TRUE(trace["traceEvents"][0]["dur"].is_number());
}

// The formula against the events. Of units alike they agree but for a few windows at the ends of
// each pass. In events the links serve one collective at a time: a gather may have to wait for a
// reduction of an earlier micro-batch that has begun, which the formula does not know.
TEST(SimulateTest, WindowsAgreeWithEventsForUnitsAlike) {
  Random random(2);
  int waited = 0;
  for (int i = 0; i < 300; ++i) {
    const Moments<double> s = {random.Real(0, 2), random.Real(0, 2), 0,
                               random.Real(0, 2), random.Real(0, 2), random.Real(0, 2)};
    const ComputeSeconds c = {random.Real(0, 4), random.Real(0, 4)};
    const int n = 40;
    const int64_t m = random.Int(1, 3);
    const double slowdown = random.OneOf({1.0, 1.2});
    double exposed = 0;
    for (int u = 0; u < n; ++u) {
      const Edge edge = u == 0 ? Edge::kFirst : u + 1 == n ? Edge::kLast : Edge::kNone;
      exposed += ExposedOfUnit(s, c, edge, m, slowdown, {});
    }
    const double events = SimulateStep(Alike(n, s, c), m, slowdown, {}).exposed();
    const double ends = 8 * static_cast<double>(m);
    EXPECT_LE(exposed, events + ends) << i;
    const double waiting = m > 1 ? static_cast<double>((m - 1) * n) * s.accumulate : 0;
    EXPECT_GE(exposed, events - ends - waiting) << i;
    waited += exposed < events - ends;
  }
  EXPECT_LT(waited, 10);
}

// Of real plans: steps within 3 % (docs/policy.md).
TEST(SimulateTest, WindowsAgreeWithEventsForRealPlans) {
  double worst = 0;
  std::string of;
  int plans = 0;
  for (const char* size : {"7B", "13B"}) {
    for (const int64_t seq_len : {512, 4096}) {
      for (const int64_t nodes : {1, 4}) {
        for (const int64_t m : {1, 4}) {
          for (const Policy& p : LegalPolicies(8, nodes, Space::kNested)) {
            const Plan plan = *PricePlan(*ModelSpec::Llama(size, {.seq_len = seq_len}), A800(nodes),
                                         {p}, {.micro_batches = m});
            const double simulated = Simulate(plan)->step;
            const double off = std::abs(plan.cost.step() / simulated - 1);
            ++plans;
            if (off <= worst) continue;
            worst = off;
            of = absl::StrCat(plan.ToString(), " seq_len=", seq_len, " m=", m, " says ",
                              plan.cost.step(), ", simulated ", simulated);
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 500);
  EXPECT_LT(worst, 0.03) << of;
}

}  // namespace
}  // namespace lins
