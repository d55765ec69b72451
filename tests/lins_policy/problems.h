// Random planning problems, and small ones with round numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lins_policy/plan.h"

namespace lins {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Int(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  double Real(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11) * 0x1.0p-53);
  }
  bool Coin() { return Int(0, 1) == 1; }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

// Every mesh of whole nodes, and every divisor of a node, with times that follow no model.
inline Profile RandomProfile(Random& random, int64_t gpus, int64_t nodes) {
  std::vector<ProfileCurve> curves;
  for (const StepKind op : {StepKind::kAllGather, StepKind::kReduceScatter, StepKind::kAllReduce,
                            StepKind::kBroadcast, StepKind::kAllToAll}) {
    for (const Factors& f : LegalFactors(gpus, nodes)) {
      if (Product(f) == 1) continue;
      ProfileCurve curve{op, f[0], f[1], {}};
      double seconds = random.Real(1e-6, 1e-4);
      for (int64_t bytes = 1 << 10; bytes <= 1 << 26; bytes <<= 4) {
        curve.points.push_back({bytes, seconds, seconds, 0, 20, ""});
        seconds *= random.Real(1.1, 8);
      }
      curves.push_back(std::move(curve));
    }
  }
  ComputeProfile compute;
  compute.flops_per_second = random.Real(1e12, 1e14);
  compute.overlap_slowdown = random.OneOf({1.0, 1.1, 1.3});
  return *Profile::Create("random", "test", gpus, nodes, std::move(curves), compute);
}

inline ModelSpec RandomModel(Random& random, int64_t units) {
  ModelSpec spec;
  spec.name = "random";
  for (int64_t i = 0; i < units; ++i) {
    Unit u{.name = std::string(1, static_cast<char>('a' + i)),
           .parameters = random.Int(1, random.OneOf<int64_t>({20, 5000, 3'000'000})),
           .repeat = random.OneOf<int64_t>({1, 1, 2, 5})};
    if (random.Int(0, 3) == 0) u.frozen = random.Int(0, u.parameters);
    u.forward_flops = random.Real(0, 1e10);
    u.activation_bytes = random.Int(0, 1 << 20);
    u.boundary_bytes = random.Int(0, u.activation_bytes);
    spec.units.push_back(u);
  }
  spec.training = {.seq_len = random.Int(1, 64),
                   .micro_batch = random.Int(1, 4),
                   .recompute = random.Coin() ? Recompute::kFull : Recompute::kNone,
                   .sizes = {random.OneOf<int64_t>({2, 4}), random.OneOf<int64_t>({2, 4}),
                             random.OneOf<int64_t>({0, 4}), 8}};
  spec.logits_bytes = random.Int(0, 1 << 16);
  return spec;
}

struct Problem {
  ModelSpec spec;
  Cluster cluster;
  PlanSettings settings;  // without a cap
};

inline Problem RandomProblem(Random& random, int64_t units) {
  Problem p{RandomModel(random, units), {}, {}};
  const auto [nodes, gpus] = random.OneOf<std::pair<int64_t, int64_t>>(
      {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {4, 2}, {3, 2}, {2, 6}});
  p.cluster.nodes = nodes;
  p.cluster.gpus_per_node = gpus;
  p.cluster.profile = std::make_shared<Profile>(
      nodes * gpus == 1 ? RandomProfile(random, 2, 1) : RandomProfile(random, gpus, nodes));
  PlanSettings& s = p.settings;
  s.micro_batches = random.OneOf<int64_t>({1, 2, 7});
  s.objective = random.Coin() ? Objective::kComm : Objective::kStep;
  s.family = random.Coin() ? Family::kPlanned : Family::kPaper;
  s.space = s.family == Family::kPaper
                ? random.OneOf({Space::kPaper, Space::kNested})
                : random.OneOf({Space::kPaper, Space::kNested, Space::kFull});
  s.tie_epsilon = random.OneOf({0.0, 0.02, 0.2});
  s.bucket_bytes = random.Int(1, 1 << 20);
  s.memory = {.gathered_units = random.Int(1, 4),
              .gradient_buckets = random.Int(0, 3),
              .fp32_gradient_copy = random.Coin(),
              .communicator_bytes = random.Int(0, 1 << 16),
              .margin = random.OneOf({0.0, 0.03}),
              .correction_bytes = random.Int(0, 1 << 16)};
  s.overlap = {.prefetch = random.Int(0, 2),
               .overlap = random.Int(0, 3) > 0,
               .overlap_update = random.Coin()};
  return p;
}

// A cluster of link speeds: nodes x gpus, 200 GB/s within a node and 100 GB/s into one.
inline Cluster ModelCluster(int64_t nodes, int64_t gpus) {
  Cluster c;
  c.nodes = nodes;
  c.gpus_per_node = gpus;
  LinkModel links;
  links.gpus_per_node = gpus;
  links.nodes = nodes;
  c.profile = std::make_shared<Profile>(*Profile::Model(links));
  return c;
}

inline Cluster A800(int64_t nodes) {
  Cluster c;
  c.nodes = nodes;
  c.profile = std::make_shared<Profile>(*Profile::Load("a800"));
  return c;
}

inline bool Near(double a, double b, double relative = 1e-9) {
  return std::abs(a - b) <= relative * std::max(std::abs(a), std::abs(b)) + 1e-18;
}

}  // namespace lins
