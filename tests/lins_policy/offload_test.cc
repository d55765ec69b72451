// Plans whose optimizer states are in host memory, and the optimizer's own seconds.
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/match.h"
#include "lins_policy/explain.h"
#include "lins_policy/plan_file.h"
#include "lins_policy/simulate.h"
#include "lins_policy/solve.h"
#include "problems.h"

namespace lins {
namespace {

Policy Cut() { return {{1, 1}, {1, 1}, {8, 1}, {}}; }

PlanSettings Offloading() {
  PlanSettings s;
  s.memory.offload = true;
  return s;
}

TEST(OptimizerTime, BytesOfARule) {
  EXPECT_EQ(TouchedBytes({2, 2, 4, 8}), 2 * 12 + 2 + 2);  // both ways; gradient; bf16 parameter
  EXPECT_EQ(TouchedBytes({4, 4, 0, 8}), 2 * 12 + 4);      // the parameter is its own master
  const OptimizerSeconds s = OptimizerSecondsOf(1000, {2, 2, 4, 8}, true, 28e3, 12e3);
  EXPECT_DOUBLE_EQ(s.optimizer, 1);
  EXPECT_DOUBLE_EQ(s.offload, 2);
  EXPECT_DOUBLE_EQ(s.longer(), 2);
  EXPECT_EQ(OptimizerSecondsOf(1000, {}, false, 0, 1).longer(), 0);
}

TEST(OffloadPlans, BytesMoveToTheHostAndChunksStay) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  const Plan on = *PricePlan(spec, A800(1), {Cut()}, {});
  PlanSettings settings = Offloading();
  const Plan off = *PricePlan(spec, A800(1), {Cut()}, settings);
  EXPECT_EQ(off.memory.optim, 0);
  EXPECT_EQ(off.memory.host_optim, on.memory.optim);
  EXPECT_EQ(on.memory.host_optim, 0);
  EXPECT_EQ(on.memory.staging, 0);
  EXPECT_EQ(off.memory.staging, 3 * (32LL << 20));
  const int64_t saved =
      on.memory.total() - on.memory.margin - off.memory.total() + off.memory.margin;
  EXPECT_EQ(saved, on.memory.optim - off.memory.staging);
  settings.memory.offload_chunk_bytes = 1 << 20;
  EXPECT_EQ(PricePlan(spec, A800(1), {Cut()}, settings)->memory.staging, 3 << 20);
  // Never more than three times the largest unit's.
  ModelSpec small{.name = "m", .units = {{.name = "a", .parameters = 80, .repeat = 9}}};
  EXPECT_EQ(PricePlan(small, A800(1), {Cut()}, Offloading())->memory.staging, 3 * 80 * 12);
  // Where all states of a rank are cut, so is what it keeps in host memory.
  EXPECT_EQ(PricePlan(small, A800(1), {Cut()}, Offloading())->memory.host_optim, 9 * 80 / 8 * 12);
}

TEST(OffloadPlans, TheLinkToTheHostCostsSecondsInBothObjectives) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  Cluster cluster = A800(1);
  const Plan on = *PricePlan(spec, cluster, {Cut()}, {});
  const Plan off = *PricePlan(spec, cluster, {Cut()}, Offloading());
  const double want = 2.0 * static_cast<double>(off.memory.host_optim) / 25e9;
  EXPECT_TRUE(Near(off.cost.update.offload, want));
  EXPECT_EQ(on.cost.update.longer(), 0);
  EXPECT_TRUE(Near(off.cost.step(), on.cost.step() + want));
  for (const Objective o : {Objective::kComm, Objective::kStep}) {
    EXPECT_TRUE(Near(off.cost.Of(o), on.cost.Of(o) + want));
  }
  cluster.host_bandwidth = 50e9;
  const Plan faster = *PricePlan(spec, cluster, {Cut()}, Offloading());
  EXPECT_TRUE(Near(faster.cost.update.offload, want / 2));
  // The optimizer's own seconds hide beneath it, and stand alone without it.
  cluster.memory_bandwidth = 1.6e12;
  const Plan both = *PricePlan(spec, cluster, {Cut()}, Offloading());
  EXPECT_GT(both.cost.update.optimizer, 0);
  EXPECT_TRUE(Near(both.cost.step(), faster.cost.step()));
  const Plan own = *PricePlan(spec, cluster, {Cut()}, {});
  const double touched = 28.0 * static_cast<double>(on.memory.optim) / 12 / 1.6e12;
  EXPECT_TRUE(Near(own.cost.step(), on.cost.step() + touched));
  EXPECT_TRUE(Near(own.cost.Of(Objective::kComm), on.cost.Of(Objective::kComm)));
}

TEST(OffloadPlans, SimulationsHaveTheOptimizerBetweenTwoSteps) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  const Plan plan = *PricePlan(spec, A800(1), {Cut()}, Offloading());
  const Simulation s = *Simulate(plan);
  EXPECT_TRUE(Near(s.optimizer, plan.cost.update.offload));
  EXPECT_NEAR(s.step / plan.cost.step(), 1, 0.03);
  const Simulation without = *Simulate(*PricePlan(spec, A800(1), {Cut()}, {}));
  EXPECT_NEAR(s.exposed(), without.exposed(), 1e-9);
  double seconds = 0;
  for (const SimulatedEvent& e : s.events) {
    if (e.what == "optimizer") seconds += e.end - e.start;
  }
  EXPECT_TRUE(Near(seconds, s.optimizer));
}

// Replicas of OS cost the optimizer's seconds on each: with them, cutting OS is worth something.
TEST(OffloadPlans, TheOptimizersSecondsSpeakForCuttingOS) {
  ModelSpec spec{.name = "m", .units = {{.name = "a", .parameters = 1 << 26, .repeat = 4}}};
  Cluster cluster = ModelCluster(1, 8);
  PlanSettings settings;
  settings.tie_epsilon = 0;
  const auto optim = [&] { return Product(Solve(spec, cluster, settings)->policies[0].optim); };
  cluster.memory_bandwidth = 1e9;  // slow enough to pay for the update's way back
  EXPECT_EQ(optim(), 8);
  settings.memory.offload = true;
  cluster.host_bandwidth = 1e9;
  EXPECT_EQ(optim(), 8);
  cluster.host_bandwidth = cluster.memory_bandwidth = 1e18;
  settings.memory.offload = false;
  const int64_t free = optim();
  cluster.memory_bandwidth = 0;
  EXPECT_EQ(optim(), free);
}

TEST(OffloadPlans, SolvingIsExact) {
  Random random(5);
  int solved = 0;
  for (int instance = 0; instance < 200; ++instance) {
    Problem p = RandomProblem(random, random.Int(1, 2));
    p.settings.memory.offload = random.Coin();
    p.settings.memory.offload_chunk_bytes = random.Int(1, 1 << 20);
    p.cluster.host_bandwidth = random.Real(1e6, 1e12);
    p.cluster.memory_bandwidth = random.Coin() ? random.Real(1e6, 1e12) : 0;
    p.settings.tie_epsilon = 0;
    const std::vector<Policy> legal =
        LegalPolicies(p.cluster.gpus_per_node, p.cluster.nodes, p.settings.space);
    const Policy& some = legal[random.Int(0, static_cast<int64_t>(legal.size()) - 1)];
    p.settings.cap_bytes =
        std::max<int64_t>(1, PricePlan(p.spec, p.cluster, {some}, p.settings)->memory.total());
    double least = std::numeric_limits<double>::infinity();
    for (const Policy& policy : legal) {
      const Plan plan = *PricePlan(p.spec, p.cluster, {policy}, p.settings);
      if (plan.fits()) least = std::min(least, plan.cost.Of(p.settings.objective));
    }
    const auto got = Solve(p.spec, p.cluster, p.settings);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(Near(got->cost.Of(p.settings.objective), least)) << instance;
    p.settings.uniform = false;
    const auto each = Solve(p.spec, p.cluster, p.settings);
    ASSERT_TRUE(each.ok()) << each.status();
    EXPECT_LE(each->memory.total(), *p.settings.cap_bytes);
    // Broadcasts of a uniform paper plan are of whole pieces, which cost less.
    if (p.settings.family == Family::kPlanned) {
      EXPECT_LE(each->cost.Of(p.settings.objective), least + 1e-11) << instance;
    }
    ++solved;
  }
  EXPECT_EQ(solved, 200);
}

TEST(OffloadPlans, FilesKeepItAndFingerprintsTellItApart) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  Cluster cluster = A800(1);
  cluster.host_bandwidth = 40e9;
  cluster.memory_bandwidth = 1e12;
  PlanSettings settings = Offloading();
  settings.memory.offload_chunk_bytes = 5 << 20;
  const Plan plan = *Solve(spec, cluster, settings);
  const std::string text = *PlanToJson(plan);
  const absl::StatusOr<Plan> read = PlanFromJson(text, "it", &spec, &cluster);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->settings == plan.settings);
  EXPECT_EQ(read->cost.update.offload, plan.cost.update.offload);
  EXPECT_EQ(read->cost.update.optimizer, plan.cost.update.optimizer);
  EXPECT_EQ(read->memory.host_optim, plan.memory.host_optim);
  EXPECT_TRUE(absl::StrContains(text, "\"host_memory\""));
  EXPECT_NE(Fingerprint(spec, cluster, settings).at("settings"),
            Fingerprint(spec, cluster, {}).at("settings"));
  EXPECT_NE(Fingerprint(spec, cluster, settings).at("topology"),
            Fingerprint(spec, A800(1), settings).at("topology"));
  cluster.host_bandwidth = 20e9;
  const absl::StatusOr<Plan> other = PlanFromJson(text, "it", &spec, &cluster);
  ASSERT_FALSE(other.ok());
  EXPECT_TRUE(absl::StrContains(other.status().message(), "host_bandwidth"));
}

TEST(OffloadPlans, ExplanationsSayWhatItIsWorthAndWhatWasAssumed) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  Cluster cluster = A800(1);
  const Plan plan = *PricePlan(spec, cluster, {Cut()}, Offloading());
  const std::string text = Explain(plan)->ToString();
  for (const char* part :
       {"to and from host memory", "staging", "optim in host memory", "of all GPUs of a node",
        "25 GB/s, which is assumed (PCIe generation 4, 16 lanes)", "fits without offload"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  }
  cluster.host_bandwidth = 50e9;
  cluster.memory_bandwidth = 1.6e12;
  PlanSettings tight = Offloading();
  tight.cap_bytes = plan.memory.total();
  const Plan other = *PricePlan(spec, cluster, {Cut()}, tight);
  const std::string given = Explain(other)->ToString();
  EXPECT_FALSE(absl::StrContains(given, "assumed (PCIe"));
  EXPECT_FALSE(absl::StrContains(given, "fits without offload"));
  EXPECT_TRUE(absl::StrContains(given, "  optimizer  ")) << given;
  const std::string without = Explain(*PricePlan(spec, A800(1), {Cut()}, {}))->ToString();
  EXPECT_FALSE(absl::StrContains(without, "host"));
  const std::string diff = Diff(*PricePlan(spec, cluster, {Cut()}, {}), other)->ToString();
  for (const char* part : {"settings.memory.offload", "optim in host memory", "staging"}) {
    EXPECT_TRUE(absl::StrContains(diff, part)) << part << "\n" << diff;
  }
}

TEST(OffloadPlans, ItIsSuggestedWhereItWouldFit) {
  const ModelSpec spec = *ModelSpec::Llama("30B", {});
  Cluster cluster = A800(1);
  PlanSettings settings;
  settings.cap_bytes = 80'000'000'000;
  const auto none = Solve(spec, cluster, settings);
  ASSERT_FALSE(none.ok());
  bool suggested = false;
  const InfeasibleAnswer answer = *InfeasibleOf(none.status());
  for (const std::string& s : answer.suggestions) {
    if (!absl::StrContains(s, "offload=True: needs ")) continue;
    suggested = true;
    PlanSettings then = settings;
    then.memory.offload = true;
    const absl::StatusOr<Plan> plan = Solve(spec, cluster, then);
    EXPECT_TRUE(plan.ok()) << s << plan.status();
  }
  EXPECT_TRUE(suggested) << none.status();
  settings.memory.offload = true;
  settings.cap_bytes = 1 << 20;
  const InfeasibleAnswer less = *InfeasibleOf(Solve(spec, cluster, settings).status());
  for (const std::string& s : less.suggestions) {
    EXPECT_FALSE(absl::StrContains(s, "offload")) << s;
  }
}

TEST(OffloadPlans, MistakesAreErrors) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  PlanSettings settings = Offloading();
  settings.memory.offload_chunk_bytes = 0;
  EXPECT_TRUE(absl::StrContains(Solve(spec, A800(1), settings).status().message(),
                                "offload_chunk_bytes=0: legal are 1 to"));
  Cluster cluster = A800(1);
  cluster.host_bandwidth = -1;
  EXPECT_TRUE(absl::StrContains(Solve(spec, cluster, {}).status().message(), "host_bandwidth=-1"));
  cluster.host_bandwidth = 0;
  cluster.memory_bandwidth = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(absl::StrContains(Solve(spec, cluster, {}).status().message(), "memory_bandwidth="));
}

}  // namespace
}  // namespace lins
