#include "lins_policy/profile_meshes.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lins {
namespace {

constexpr size_t kMostDerived = 4096;  // curves kept of meshes never measured

const TimeCurve& NoTime() {
  static const TimeCurve zero({{0, 0, 0, PointSource::kMeasured, PointSource::kMeasured}});
  return zero;
}

}  // namespace

int ProfileOperation(StepKind op) {
  const auto it = std::find(std::begin(kProfileOperations), std::end(kProfileOperations), op);
  return it == std::end(kProfileOperations) ? -1 : it - std::begin(kProfileOperations);
}

ProfileMeshes::ProfileMeshes(int64_t gpus_per_node, const std::vector<ProfileCurve>& curves)
    : gpus_per_node_(gpus_per_node) {
  for (const ProfileCurve& c : curves) {
    measured_[ProfileOperation(c.op)].push_back({{c.nodes, c.gpus}, FitCurve(c.points).time});
  }
  for (auto& of_op : measured_) {
    std::sort(of_op.begin(), of_op.end(),
              [](const Measured& a, const Measured& b) { return a.mesh < b.mesh; });
  }
}

const ProfileMeshes::Measured* ProfileMeshes::Find(int op, int64_t gpus, int64_t nodes) const {
  const MeshKey mesh{nodes, gpus};
  const auto& all = measured_[op];
  const auto it = std::lower_bound(all.begin(), all.end(), mesh,
                                   [](const Measured& m, const MeshKey& k) { return m.mesh < k; });
  return it != all.end() && it->mesh == mesh ? &*it : nullptr;
}

// Curves along one direction, by size, at least one: the first as it is for smaller sizes, between
// two of them, and on from the last two.
ProfileMeshes::Rule ProfileMeshes::Along(const Line& line, int64_t size) {
  if (size <= line.front().first) return {line.front().second, line.front().second};
  if (line.size() == 1) return {};
  const auto next = std::lower_bound(line.begin() + 1, line.end() - 1, size,
                                     [](const auto& x, int64_t s) { return x.first < s; });
  const auto [low, from] = *(next - 1);
  const auto [high, to] = *next;
  return {from, to, std::log2(double(size) / low) / std::log2(double(high) / low)};
}

ProfileMeshes::Rule ProfileMeshes::RuleFor(int op, int64_t gpus, int64_t nodes) const {
  if (const Measured* m = Find(op, gpus, nodes)) return {m, m};
  Line line;
  const auto along = [&](int64_t size, const Measured* one) -> Rule {
    if (line.empty()) return {};
    // A single curve goes on from that of a group of one rank, which takes no time.
    const bool on = line.size() == 1 && line.front().first < size;
    if (on && (one || gpus == 1 || nodes == 1)) line.insert(line.begin(), {1, one});
    return Along(line, size);
  };
  if (nodes == 1) {
    for (const Measured& m : measured_[op]) {
      if (m.mesh.first == 1) line.push_back({m.mesh.second, &m});
    }
    return along(gpus, nullptr);
  }
  for (const Measured& m : measured_[op]) {
    if (m.mesh.second == gpus && m.mesh.first > 1) line.push_back({m.mesh.first, &m});
  }
  const bool inside = !line.empty() && line.front().first < nodes && nodes < line.back().first;
  if (gpus < gpus_per_node_ && !inside) {
    // The sibling groups of a node share its links as its ranks do in one group of them all.
    if (Rule whole = RuleFor(op, gpus_per_node_, nodes); whole.to) {
      whole.scale = double(gpus_per_node_) / gpus;
      return whole;
    }
  }
  return along(nodes, Find(op, gpus, 1));
}

std::shared_ptr<const ProfileMeshes::Derived> ProfileMeshes::Derive(int op, int64_t gpus,
                                                                    int64_t nodes) const {
  const std::array<int64_t, 3> key = {op, gpus, nodes};
  {
    std::shared_lock lock(mutex_);
    if (const auto it = derived_.find(key); it != derived_.end()) return it->second;
  }
  const Rule rule = RuleFor(op, gpus, nodes);
  auto derived = std::make_shared<Derived>();
  if (rule.to) {
    derived->time = rule.from == rule.to
                        ? rule.to->time
                        : Blend(rule.from ? rule.from->time : NoTime(), rule.to->time, rule.weight);
    derived->scale = rule.scale;
  }
  std::unique_lock lock(mutex_);
  if (derived_.size() >= kMostDerived) derived_.clear();
  return derived_.try_emplace(key, std::move(derived)).first->second;
}

ProfileMeshes::Answer ProfileMeshes::Time(StepKind kind, int64_t bytes, int64_t gpus,
                                          int64_t nodes) const {
  const int op = ProfileOperation(kind);
  Answer answer;
  if (const Measured* m = Find(op, gpus, nodes)) {
    answer.seconds = m->time.Seconds(bytes, &answer.source);
    return answer;
  }
  const auto derived = Derive(op, gpus, nodes);
  answer.derived = true;
  if (!derived->time.knots().empty()) {
    answer.seconds = derived->time.Seconds(bytes * derived->scale, &answer.source);
  }
  return answer;
}

std::string ProfileMeshes::Derivation(StepKind kind, int64_t gpus, int64_t nodes) const {
  const int op = ProfileOperation(kind);
  const Rule rule = RuleFor(op, gpus, nodes);
  const auto text = [](const Measured* m) {
    return m ? absl::StrCat(m->mesh.second, "x", m->mesh.first) : std::string("one rank");
  };
  if (!rule.to) {
    std::vector<std::string> meshes;
    for (const Measured& m : measured_[op]) meshes.push_back(text(&m));
    return absl::StrCat(StepKindName(kind), " was measured on ", absl::StrJoin(meshes, ", "),
                        " (GPUs per node x nodes), which says nothing of ", gpus, "x", nodes);
  }
  std::string out = absl::StrCat(gpus, "x", nodes, " was not measured: ");
  if (rule.from == rule.to) {
    absl::StrAppend(&out, "taken from ", text(rule.to));
  } else {
    absl::StrAppend(&out, rule.weight > 1 ? "continued from " : "between ", text(rule.from),
                    " and ", text(rule.to), " by log2 of the size");
  }
  if (rule.scale > 1) {
    absl::StrAppend(&out, ", at ", rule.scale, " times the bytes, as the ", rule.scale,
                    " sibling groups of a node share its links");
  }
  return out;
}

}  // namespace lins
