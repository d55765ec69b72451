// How long solving takes. Arguments: nodes of 8 GPUs.
//
// Cold: every iteration plans all redistributions anew. plans_per_second counts priced plans.
#include <benchmark/benchmark.h>

#include "lins_policy/evaluate.h"
#include "lins_policy/knapsack.h"
#include "lins_policy/solve.h"

namespace lins {
namespace {

Cluster ClusterOf(int64_t nodes) {
  Cluster c;
  c.nodes = nodes;
  c.profile = std::make_shared<Profile>(*Profile::Load("a800"));
  return c;
}

// 80 layers of 7 linears each, every one a unit of its own.
ModelSpec Linears() {
  ModelSpec spec;
  spec.name = "80 x 7 linears";
  const std::pair<const char*, int64_t> shapes[] = {
      {"q", 8192LL * 8192},    {"k", 8192LL * 1024},     {"v", 8192LL * 1024},
      {"o", 8192LL * 8192},    {"gate", 8192LL * 28672}, {"up", 8192LL * 28672},
      {"down", 8192LL * 28672}};
  for (int layer = 0; layer < 80; ++layer) {
    for (const auto& [name, parameters] : shapes) {
      Unit u;
      u.name = absl::StrCat("layers.", layer, ".", name);
      u.parameters = parameters;
      u.forward_flops = 2.0 * 4096 * static_cast<double>(parameters);
      spec.units.push_back(u);
    }
  }
  return spec;
}

void Uniform(benchmark::State& state, Family family, int64_t micro_batches) {
  const ModelSpec spec = *ModelSpec::Llama("13B", {});
  const Cluster cluster = ClusterOf(state.range(0));
  PlanSettings settings;
  settings.family = family;
  settings.micro_batches = micro_batches;
  for (auto _ : state) {
    auto plan = Solve(spec, cluster, settings);
    if (!plan.ok()) state.SkipWithError(std::string(plan.status().message()).c_str());
    benchmark::DoNotOptimize(plan);
  }
}
BENCHMARK_CAPTURE(Uniform, paper_m1, Family::kPaper, 1)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Uniform, planned_m1, Family::kPlanned, 1)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Uniform, planned_m4, Family::kPlanned, 4)
    ->Arg(16)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);

// Under caps from the least memory (0 %) to what the fastest plan takes (100 %).
void PerUnit(benchmark::State& state) {
  const ModelSpec spec = Linears();
  const Cluster cluster = ClusterOf(16);
  PlanSettings settings;
  settings.uniform = false;
  settings.objective = Objective::kComm;
  settings.micro_batches = 4;
  settings.cap_bytes = int64_t{1} << 60;
  const int64_t most = Solve(spec, cluster, settings)->memory.total();
  settings.cap_bytes = 1;
  const int64_t least = InfeasibleOf(Solve(spec, cluster, settings).status())->least_bytes;
  settings.cap_bytes = least + (most - least) / 100 * state.range(0);
  for (auto _ : state) {
    auto plan = Solve(spec, cluster, settings);
    if (!plan.ok()) state.SkipWithError(std::string(plan.status().message()).c_str());
    benchmark::DoNotOptimize(plan);
  }
}
BENCHMARK(PerUnit)->Arg(5)->Arg(25)->Arg(50)->Arg(75)->Arg(95)->Unit(benchmark::kMillisecond);

void Pricing(benchmark::State& state, Family family) {
  PlanSettings settings;
  settings.family = family;
  settings.micro_batches = 4;
  auto evaluator = *Evaluator::Create(*ModelSpec::Llama("13B", {}), ClusterOf(16), settings);
  const std::vector<Policy> legal = LegalPolicies(8, 16, Space::kNested);
  for (auto _ : state) {
    for (const Policy& p : legal) {
      const std::vector<Policy> all(evaluator.share().units.size(), p);
      benchmark::DoNotOptimize(evaluator.Cost(all));
      benchmark::DoNotOptimize(evaluator.Memory(all));
    }
  }
  state.counters["plans_per_second"] = benchmark::Counter(
      static_cast<double>(state.iterations() * static_cast<int64_t>(legal.size())),
      benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(Pricing, paper, Family::kPaper)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Pricing, planned_known, Family::kPlanned)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lins

BENCHMARK_MAIN();
