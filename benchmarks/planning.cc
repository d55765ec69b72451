// How long planning takes: every pair of a set of layouts, cold and from the cache.
//
// median_us, p90_us and worst_us are over the pairs, of the fastest time of each.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "placement/redistribution.h"

namespace lins {
namespace {

std::vector<std::pair<Layout, Layout>> Pairs(const Mesh& mesh, const Shape& shape,
                                             const std::vector<const char*>& texts) {
  std::vector<Layout> layouts;
  for (const char* text : texts) {
    if (auto l = Layout::Parse(text, shape, mesh); l.ok()) layouts.push_back(*std::move(l));
  }
  std::vector<std::pair<Layout, Layout>> out;
  for (const Layout& a : layouts) {
    for (const Layout& b : layouts) {
      if (a != b && PlanRedistribution(a, b, 4).ok()) out.emplace_back(a, b);
    }
  }
  return out;
}

// Plans every pair once an iteration; the counters come from each pair's fastest time.
template <typename Plan>
void Measure(benchmark::State& state, const std::vector<std::pair<Layout, Layout>>& pairs,
             Plan plan) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> best(pairs.size(), 1e30);
  for (auto _ : state) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto begin = Clock::now();
      benchmark::DoNotOptimize(plan(pairs[i].first, pairs[i].second));
      best[i] = std::min(best[i], std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }
  std::sort(best.begin(), best.end());
  state.counters["pairs"] = static_cast<double>(pairs.size());
  state.counters["median_us"] = best[best.size() / 2] * 1e6;
  state.counters["p90_us"] = best[best.size() * 9 / 10] * 1e6;
  state.counters["worst_us"] = best.back() * 1e6;
}

const std::vector<const char*> kTwoAxes = {"R",
                                           "S0(a)",
                                           "S0(b)",
                                           "S0(a,b)",
                                           "S0(b,a)",
                                           "S1(a)",
                                           "S1(b,a)",
                                           "S0(a) S1(b)",
                                           "S3(b)",
                                           "S0(b) S2(a)",
                                           "S2(a,b)",
                                           "F(a)",
                                           "F(b,a)",
                                           "O(a; 1)",
                                           "+sum(a)",
                                           "+sum(a,b)",
                                           "+avg(b)",
                                           "+max(a)",
                                           "S0(a) +sum(b)",
                                           "S1(b) +sum(a)",
                                           "S3(a) +max(b)",
                                           "F(a) +sum(b)"};
const std::vector<const char*> kThreeAxes = {"R",
                                             "S0(a,b,c)",
                                             "S0(c,b,a)",
                                             "S0(a) S1(b) S2(c)",
                                             "S1(b,a)",
                                             "F(a,b,c)",
                                             "F(c)",
                                             "O(a; 1)",
                                             "+sum(a)",
                                             "+sum(a,b)",
                                             "+sum(a,b,c)",
                                             "S0(a) +sum(b)",
                                             "S0(c) +sum(a,b)",
                                             "S1(b) +sum(a,c)",
                                             "S0(a) S1(b) +sum(c)",
                                             "F(a,c) +sum(b)",
                                             "S2(c) +max(a)"};

void Cold(benchmark::State& state, std::vector<int64_t> mesh, Shape shape) {
  const bool three = mesh.size() == 3;
  const Mesh m = *Mesh::Create(
      mesh, three ? std::vector<std::string>{"a", "b", "c"} : std::vector<std::string>{"a", "b"});
  Measure(state, Pairs(m, shape, three ? kThreeAxes : kTwoAxes),
          [](const Layout& a, const Layout& b) { return PlanRedistribution(a, b, 4); });
}
BENCHMARK_CAPTURE(Cold, mesh_2x4_of_16x8_even, {2, 4}, {16, 8})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Cold, mesh_2x4_of_16x8x8x8_even, {2, 4}, {16, 8, 8, 8})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Cold, mesh_4x8_of_32x32x32x32_even, {4, 8}, {32, 32, 32, 32})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Cold, mesh_2x3_of_7x5x9x4_uneven, {2, 3}, {7, 5, 9, 4})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Cold, mesh_4x6x5_of_120x120_even, {4, 6, 5}, {120, 120})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Cold, mesh_4x6x5_of_48x60x50_uneven, {4, 6, 5}, {48, 60, 50})
    ->Unit(benchmark::kMillisecond);

void Cached(benchmark::State& state) {
  const Mesh mesh = *Mesh::Create({2, 4}, {"a", "b"});
  Measure(state, Pairs(mesh, {16, 8, 8, 8}, kTwoAxes),
          [](const Layout& a, const Layout& b) { return CachedPlan(a, b, 4); });
}
BENCHMARK(Cached)->Unit(benchmark::kMillisecond);

// The four redistributions of a training step on 128 nodes of 8.
void TrainingStep(benchmark::State& state) {
  const Mesh mesh = *Mesh::Create({128, 8}, {"node", "gpu"});
  Measure(state,
          Pairs(mesh, {1 << 20},
                {"R", "S0(gpu)", "S0(gpu,node)", "+sum(node,gpu)", "S0(gpu) +sum(node)"}),
          [](const Layout& a, const Layout& b) { return PlanRedistribution(a, b, 4); });
}
BENCHMARK(TrainingStep)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lins

BENCHMARK_MAIN();
