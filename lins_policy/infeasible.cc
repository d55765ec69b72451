#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lins_policy/solve.h"
#include "lins_policy/solve_parts.h"
#include "mesh/error.h"
#include "nlohmann/json.hpp"

namespace lins {
namespace {

constexpr char kPayload[] = "lins/infeasible";

using Sized = std::pair<std::string, int64_t>;

// Recomputation, OS in host memory, fewer sequences at once, more nodes: the least memory after
// each change.
std::vector<std::string> Suggestions(const ModelSpec& spec, const Cluster& cluster,
                                     const PlanSettings& settings, int64_t cap) {
  std::vector<std::string> out;
  const auto attempt = [&](const ModelSpec& s, const Cluster& c, absl::string_view what,
                           bool offload = false) {
    PlanSettings changed = settings;
    changed.memory.offload |= offload;
    auto scales = MakeScales(s, c, changed);
    if (!scales.ok()) return;
    const int64_t needed = LeastMemory(*scales).total();
    if (needed <= cap) out.push_back(absl::StrFormat("%s: needs %d bytes", what, needed));
  };
  ModelSpec recomputing = spec;
  recomputing.training.recompute = Recompute::kFull;
  const bool can_recompute = spec.training.recompute != Recompute::kFull;
  if (can_recompute) attempt(recomputing, cluster, "recompute='full'");
  if (!settings.memory.offload) {
    attempt(spec, cluster, "offload=True", true);
    if (can_recompute && out.empty()) {
      attempt(recomputing, cluster, "recompute='full', offload=True", true);
    }
  }
  const size_t before_batches = out.size();
  for (int64_t b = spec.training.micro_batch / 2; b >= 1 && out.size() == before_batches; b /= 2) {
    attempt(*spec.WithMicroBatch(b), cluster, absl::StrFormat("micro_batch=%d", b));
  }
  for (int64_t times = 2; times <= 64 && out.size() < 4; times *= 2) {
    Cluster larger = cluster;
    larger.nodes *= times;
    const size_t before = out.size();
    attempt(spec, larger, absl::StrFormat("nodes=%d", larger.nodes));
    if (can_recompute && out.size() == before) {
      attempt(recomputing, larger, absl::StrFormat("recompute='full', nodes=%d", larger.nodes));
    }
    if (out.size() > before) break;
  }
  return out;
}

}  // namespace

MemoryItems LeastMemory(std::vector<WeightedEvaluator>& scales) {
  if (!scales[0].evaluator.settings().uniform) {
    return LeastMemoryPerUnit(scales[0].evaluator);
  }
  MemoryItems least;
  bool found = false;
  for (const Policy& p : LegalOnAll(scales)) {
    MemoryItems most;
    for (const WeightedEvaluator& s : scales) {
      const std::vector<Policy> all(s.evaluator.share().units.size(), p);
      const MemoryItems m = s.evaluator.Memory(all);
      if (m.total() >= most.total()) most = m;
    }
    if (!found || most.total() < least.total()) least = most;
    found = true;
  }
  return least;
}

absl::Status Infeasible(std::vector<WeightedEvaluator>& scales, const ModelSpec& spec,
                        const Cluster& cluster, const PlanSettings& settings) {
  const MemoryItems least = LeastMemory(scales);
  const int64_t cap = scales[0].evaluator.cap_bytes();
  std::vector<Sized> items;
  for (const auto& [name, bytes] : least.List()) items.emplace_back(std::string(name), bytes);
  std::stable_sort(items.begin(), items.end(),
                   [](const Sized& a, const Sized& b) { return a.second > b.second; });
  items.resize(4);
  const std::vector<std::string> help = Suggestions(spec, cluster, settings, cap);

  std::string message = absl::StrFormat(
      "no plan of %s on %d x %d GPUs fits %d bytes: the least needs %d, of which %s", spec.name,
      cluster.nodes, cluster.gpus_per_node, cap, least.total(),
      absl::StrJoin(items, ", ", [](std::string* out, const Sized& x) {
        absl::StrAppendFormat(out, "%s %d", x.first, x.second);
      }));
  if (!help.empty()) absl::StrAppend(&message, ". These fit: ", absl::StrJoin(help, "; "));
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kPayload,
                    absl::Cord(nlohmann::json{
                        {"least_bytes", least.total()}, {"largest", items}, {"suggestions", help}}
                                   .dump()));
  return status;
}

std::optional<InfeasibleAnswer> InfeasibleOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  const nlohmann::json j = nlohmann::json::parse(std::string(*payload));
  return InfeasibleAnswer{j["least_bytes"], j["largest"], j["suggestions"]};
}

}  // namespace lins
