#include "lins_policy/plan_inputs_json.h"

#include <limits>

namespace lins {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

template <typename T>
T OneOf(const JsonPlace& json, absl::StatusOr<T> (*parse)(absl::string_view), T otherwise) {
  const absl::StatusOr<T> value = parse(json.String());
  if (value.ok()) return *value;
  json.Fail(value.status().message());
  return otherwise;
}

bool Flag(const JsonPlace& json) { return json.Int(0, 1) == 1; }

}  // namespace

nlohmann::json ModelToJson(const ModelSpec& spec) {
  nlohmann::json units = nlohmann::json::array();
  for (const Unit& u : spec.units) {
    units.push_back({{"name", u.name},
                     {"parameters", u.parameters},
                     {"repeat", u.repeat},
                     {"frozen", u.frozen},
                     {"forward_flops", u.forward_flops},
                     {"activation_bytes", u.activation_bytes},
                     {"boundary_bytes", u.boundary_bytes},
                     {"forward_seconds", u.forward_seconds},
                     {"backward_seconds", u.backward_seconds}});
  }
  const TrainingShape& t = spec.training;
  return {{"name", spec.name},
          {"units", units},
          {"seq_len", t.seq_len},
          {"micro_batch", t.micro_batch},
          {"recompute", RecomputeName(t.recompute)},
          {"state_bytes",
           {{"param", t.sizes.param},
            {"grad", t.sizes.grad},
            {"master", t.sizes.master},
            {"moments", t.sizes.moments}}},
          {"logits_bytes", spec.logits_bytes}};
}

ModelSpec ModelFromJson(const JsonPlace& json) {
  ModelSpec spec;
  spec.name = json.At("name").String();
  for (const JsonPlace& u : json.At("units").Items()) {
    spec.units.push_back({.name = u.At("name").String(),
                          .parameters = u.At("parameters").Int(0, kMost),
                          .repeat = u.At("repeat").Int(1, kMost),
                          .frozen = u.At("frozen").Int(0, kMost),
                          .forward_flops = u.At("forward_flops").Number(),
                          .activation_bytes = u.At("activation_bytes").Int(0, kMost),
                          .boundary_bytes = u.At("boundary_bytes").Int(0, kMost),
                          .forward_seconds = u.At("forward_seconds").Number(),
                          .backward_seconds = u.At("backward_seconds").Number()});
  }
  TrainingShape& t = spec.training;
  t.seq_len = json.At("seq_len").Int(1, kMost);
  t.micro_batch = json.At("micro_batch").Int(1, kMost);
  t.recompute = OneOf(json.At("recompute"), ParseRecompute, Recompute::kNone);
  const JsonPlace sizes = json.At("state_bytes");
  t.sizes = {sizes.At("param").Int(1, 64), sizes.At("grad").Int(1, 64),
             sizes.At("master").Int(0, 64), sizes.At("moments").Int(0, 64)};
  spec.logits_bytes = json.At("logits_bytes").Int(0, kMost);
  return spec;
}

nlohmann::json ClusterToJson(const Cluster& c) {
  nlohmann::json out = {{"nodes", c.nodes},
                        {"gpus_per_node", c.gpus_per_node},
                        {"memory_bytes", c.memory_bytes},
                        {"flops_per_second", c.flops_per_second},
                        {"tensor_parallel", c.tensor_parallel},
                        {"pipeline_parallel", c.pipeline_parallel},
                        {"host_bandwidth", c.host_bandwidth},
                        {"memory_bandwidth", c.memory_bandwidth},
                        {"profile", nlohmann::json::parse(c.profile->ToJson())}};
  if (c.quota_bytes) out["quota_bytes"] = *c.quota_bytes;
  return out;
}

Cluster ClusterFromJson(const JsonPlace& json) {
  Cluster c;
  c.nodes = json.At("nodes").Int(1, kMost);
  c.gpus_per_node = json.At("gpus_per_node").Int(1, kMost);
  c.memory_bytes = json.At("memory_bytes").Int(1, kMost);
  c.flops_per_second = json.At("flops_per_second").Number();
  c.tensor_parallel = json.At("tensor_parallel").Int(1, kMost);
  c.pipeline_parallel = json.At("pipeline_parallel").Int(1, kMost);
  // Plans of before there was an offload have none of it.
  if (json.Has("host_bandwidth")) c.host_bandwidth = json.At("host_bandwidth").Number();
  if (json.Has("memory_bandwidth")) c.memory_bandwidth = json.At("memory_bandwidth").Number();
  if (json.Has("quota_bytes")) c.quota_bytes = json.At("quota_bytes").Int(1, kMost);
  const JsonPlace profile = json.At("profile");
  if (profile.value() == nullptr) return c;
  const absl::StatusOr<Profile> read = Profile::FromJson(profile.value()->dump(), "its profile");
  if (read.ok()) {
    c.profile = std::make_shared<Profile>(*read);
  } else {
    profile.Fail(read.status().message());
  }
  return c;
}

nlohmann::json SettingsToJson(const PlanSettings& s) {
  nlohmann::json scales = nlohmann::json::array();
  for (const Scale& x : s.scales) {
    scales.push_back(
        {{"nodes", x.nodes}, {"micro_batches", x.micro_batches}, {"weight", x.weight}});
  }
  nlohmann::json out = {{"micro_batches", s.micro_batches},
                        {"objective", ObjectiveName(s.objective)},
                        {"space", SpaceName(s.space)},
                        {"family", FamilyName(s.family)},
                        {"uniform", s.uniform ? 1 : 0},
                        {"split_repeats", s.split_repeats ? 1 : 0},
                        {"tie_epsilon", s.tie_epsilon},
                        {"bucket_bytes", s.bucket_bytes},
                        {"memory",
                         {{"gathered_units", s.memory.gathered_units},
                          {"gradient_buckets", s.memory.gradient_buckets},
                          {"fp32_gradient_copy", s.memory.fp32_gradient_copy ? 1 : 0},
                          {"communicator_bytes", s.memory.communicator_bytes},
                          {"margin", s.memory.margin},
                          {"correction_bytes", s.memory.correction_bytes},
                          {"offload", s.memory.offload ? 1 : 0},
                          {"offload_chunk_bytes", s.memory.offload_chunk_bytes}}},
                        {"overlap",
                         {{"prefetch", s.overlap.prefetch},
                          {"overlap", s.overlap.overlap ? 1 : 0},
                          {"overlap_update", s.overlap.overlap_update ? 1 : 0}}},
                        {"scales", scales}};
  if (s.cap_bytes) out["cap_bytes"] = *s.cap_bytes;
  return out;
}

PlanSettings SettingsFromJson(const JsonPlace& json) {
  PlanSettings s;
  s.micro_batches = json.At("micro_batches").Int(1, kMost);
  s.objective = OneOf(json.At("objective"), ParseObjective, Objective::kStep);
  s.space = OneOf(json.At("space"), ParseSpace, Space::kNested);
  s.family = OneOf(json.At("family"), ParseFamily, Family::kPlanned);
  s.uniform = Flag(json.At("uniform"));
  s.split_repeats = Flag(json.At("split_repeats"));
  s.tie_epsilon = json.At("tie_epsilon").Number();
  s.bucket_bytes = json.At("bucket_bytes").Int(1, kMost);
  if (json.Has("cap_bytes")) s.cap_bytes = json.At("cap_bytes").Int(1, kMost);
  const JsonPlace m = json.At("memory");
  s.memory = {.gathered_units = m.At("gathered_units").Int(1, kMost),
              .gradient_buckets = m.At("gradient_buckets").Int(0, kMost),
              .fp32_gradient_copy = Flag(m.At("fp32_gradient_copy")),
              .communicator_bytes = m.At("communicator_bytes").Int(0, kMost),
              .margin = m.At("margin").Number(),
              .correction_bytes = m.At("correction_bytes").Int(-kMost, kMost)};
  if (m.Has("offload")) s.memory.offload = Flag(m.At("offload"));
  if (m.Has("offload_chunk_bytes")) {
    s.memory.offload_chunk_bytes = m.At("offload_chunk_bytes").Int(1, kMost);
  }
  const JsonPlace o = json.At("overlap");
  s.overlap = {.prefetch = o.At("prefetch").Int(0, kMost),
               .overlap = Flag(o.At("overlap")),
               .overlap_update = Flag(o.At("overlap_update"))};
  for (const JsonPlace& x : json.At("scales").Items()) {
    s.scales.push_back({x.At("nodes").Int(1, kMost), x.At("micro_batches").Int(1, kMost),
                        x.At("weight").Number()});
  }
  return s;
}

}  // namespace lins
