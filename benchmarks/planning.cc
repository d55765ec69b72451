// How long planning takes: every pair of a set of layouts, cold and from the cache.
//
// median_us, p90_us and worst_us are over the pairs, of the fastest time of each; processor time,
// except from the cache, which takes less than reading that clock.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>

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

double Seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Plans every pair once an iteration; the counters come from each pair's fastest time.
template <typename Plan>
void Measure(benchmark::State& state, const std::vector<std::pair<Layout, Layout>>& pairs,
             Plan plan, clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  std::vector<double> best(pairs.size(), 1e30);
  for (auto _ : state) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double begin = Seconds(clock);
      benchmark::DoNotOptimize(plan(pairs[i].first, pairs[i].second));
      best[i] = std::min(best[i], Seconds(clock) - begin);
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
  Measure(
      state, Pairs(mesh, {16, 8, 8, 8}, kTwoAxes),
      [](const Layout& a, const Layout& b) { return CachedPlan(a, b, 4); }, CLOCK_MONOTONIC);
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

// Seconds that grow with bytes and with the links crossed, as a profile's do.
class LinkModel : public CostModel {
 public:
  double Seconds(StepKind kind, int64_t bytes, int64_t gpus, int64_t nodes) const override {
    const double hops = static_cast<double>(gpus * nodes - 1);
    const double rate = nodes > 1 ? 20e9 : 150e9, wait = nodes > 1 ? 20e-6 : 5e-6;
    return (kind == StepKind::kAllReduce ? 2 : 1) *
           (wait * hops + static_cast<double>(bytes) / rate * hops / (hops + 1));
  }
};

// What a policy solver asks of one unit: P -> R, +sum -> G, G -> OS and OS -> P for all prefixes
// P <= G <= OS of the chain gpu:a, gpu:b@a, node, with a cost model.
void Policy(benchmark::State& state, int64_t nodes, int64_t gpus) {
  const Mesh mesh = *Mesh::Create({nodes, gpus}, {"node", "gpu"});
  const Layout whole = Layout::Replicated({nodes * gpus * 1000}, mesh);
  std::vector<std::pair<int64_t, int64_t>> lengths;  // pieces over gpu and node
  for (int64_t g = 1; g <= gpus; ++g) {
    if (gpus % g == 0) lengths.emplace_back(g, 1);
  }
  if (nodes > 1) lengths.emplace_back(gpus, nodes);
  // A state as pieces of the chain, cut where one of the two ends.
  const auto layout = [&](size_t at, size_t other, bool pending) {
    Axes split, rest;
    const auto add = [&](int axis, int64_t whole_axis, int64_t a, int64_t b) {
      int64_t stride = 1;
      for (const int64_t end : {std::min(a, b), std::max(a, b), whole_axis}) {
        if (end == stride) continue;
        (end <= a ? split : rest).push_back({axis, end / stride, stride});
        stride = end;
      }
    };
    add(1, gpus, lengths[at].first, lengths[other].first);
    add(0, nodes, lengths[at].second, lengths[other].second);
    Terms terms;
    if (!split.empty()) terms.shards.push_back({0, split});
    if (pending && !rest.empty()) terms.partials.push_back({ReduceOp::kSum, Canonical(mesh, rest)});
    return whole.WithTerms(terms);
  };
  std::vector<std::pair<Layout, Layout>> pairs;
  const auto add = [&pairs](const Layout& a, const Layout& b) {
    if (a != b) pairs.emplace_back(a, b);
  };
  for (size_t fine = 0; fine < lengths.size(); ++fine) {
    add(layout(fine, fine, false), whole);
    add(layout(0, fine, true), layout(fine, fine, true));
    for (size_t coarse = 0; coarse <= fine; ++coarse) {
      add(layout(coarse, fine, true), layout(fine, coarse, false));
      add(layout(fine, coarse, false), layout(coarse, fine, false));
    }
  }
  static const LinkModel kModel;
  Measure(state, pairs, [](const Layout& a, const Layout& b) {
    PlanOptions options;
    options.cost_model = &kModel;
    return PlanRedistribution(a, b, 4, options);
  });
}
BENCHMARK_CAPTURE(Policy, mesh_2x4, 2, 4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Policy, mesh_4x8, 4, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Policy, mesh_128x8, 128, 8)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lins

BENCHMARK_MAIN();
