#include "lins_policy/plan_file.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lins_policy/json_diff.h"
#include "lins_policy/plan_inputs_json.h"
#include "lins_policy/save_file.h"
#include "mesh/error.h"
#include "mesh/fnv.h"

namespace lins {
namespace {

constexpr char kFormat[] = "lins-plan";
constexpr int64_t kVersion = 1;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Finds damage and edits, not forgery.
std::string Digest(absl::string_view text) { return absl::StrFormat("%016x", Fnv64(text)); }

template <typename T>
nlohmann::json TermsToJson(const CostTerms<T>& t) {
  return {
      {"T_p", t.t_p}, {"T_g", t.t_g}, {"T_os0", t.t_os0}, {"T_os1", t.t_os1}, {"total", t.total()}};
}

nlohmann::json CostToJson(const PlanCost& c) {
  return {{"seconds", TermsToJson(c.seconds)},
          {"recv_bytes", TermsToJson(c.bytes)},
          {"extra_micro_batch", c.extra_micro_batch},
          {"compute", c.compute},
          {"exposed", c.exposed},
          {"optimizer", c.update.optimizer},
          {"offload", c.update.offload},
          {"step", c.step()}};
}

nlohmann::json FactorsToJson(const Factors& f) {
  nlohmann::json out = nlohmann::json::array();
  for (const int64_t x : f) out.push_back(x);
  return out;
}

nlohmann::json UnitToJson(const Unit& unit, const Policy& policy, const Mesh& mesh, Family family) {
  const UnitLayouts at = LayoutsOf(unit, policy, mesh);
  return {{"name", unit.name},
          {"repeat", unit.repeat},
          {"policy", policy.ToString()},
          {"family", FamilyName(family)},
          {"meshes",
           {{"param", FactorsToJson(policy.param)},
            {"grad", FactorsToJson(policy.grad)},
            {"optim", FactorsToJson(policy.optim)}}},
          {"layouts",
           {{"param", at.param.ToString()},
            {"grad", at.grad.ToString()},
            {"optim", at.optim.ToString()},
            {"between", at.between.ToString()}}}};
}

nlohmann::json AlternativesToJson(const Plan& plan) {
  nlohmann::json out = nlohmann::json::array();
  for (const Alternative& a : plan.alternatives) {
    out.push_back({{"name", a.name},
                   {"policy", a.policy.ToString()},
                   {"cost", CostToJson(a.cost)},
                   {"memory_bytes", a.memory_bytes},
                   {"fits", a.fits ? 1 : 0},
                   {"why_not", a.why_not}});
  }
  return out;
}

CostTerms<double> SecondsFromJson(const JsonPlace& json) {
  return {json.At("T_p").Number(), json.At("T_g").Number(), json.At("T_os0").Number(),
          json.At("T_os1").Number()};
}

CostTerms<int64_t> BytesFromJson(const JsonPlace& json) {
  const auto at = [&](absl::string_view term) { return json.At(term).Int(0, kMost); };
  return {at("T_p"), at("T_g"), at("T_os0"), at("T_os1")};
}

PlanCost CostFromJson(const JsonPlace& json) {
  PlanCost c;
  c.seconds = SecondsFromJson(json.At("seconds"));
  c.bytes = BytesFromJson(json.At("recv_bytes"));
  c.extra_micro_batch = json.At("extra_micro_batch").Number();
  c.compute = json.At("compute").Number();
  c.exposed = json.At("exposed").Number();
  if (json.Has("optimizer")) c.update.optimizer = json.At("optimizer").Number();
  if (json.Has("offload")) c.update.offload = json.At("offload").Number();
  return c;
}

Policy PolicyFromJson(const JsonPlace& json, const Mesh& mesh) {
  const absl::StatusOr<Policy> policy = ParsePolicy(json.String(), mesh, Space::kFull);
  if (policy.ok()) return *policy;
  json.Fail(policy.status().message());
  const Factors one(mesh.ndim(), 1);
  return {one, one, one, {}};
}

bool Near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

absl::Status RefuseChanges(const nlohmann::json& was, const nlohmann::json& is,
                           absl::string_view part, absl::string_view what) {
  std::vector<JsonDifference> changes = DiffJson(was, is, std::string(part));
  if (changes.empty()) return absl::OkStatus();
  const size_t all = changes.size();
  if (all > 5) changes.resize(5);
  const auto format = [](std::string* out, const JsonDifference& d) {
    absl::StrAppend(out, d.path, " is ", d.b, " and was ", d.a);
  };
  return InvalidArgument(what,
                         " was made for something else: ", absl::StrJoin(changes, "; ", format),
                         all > 5 ? absl::StrCat("; and ", all - 5, " more") : "",
                         ". Solve again, or validate the plan by pricing its policies anew");
}

}  // namespace

std::map<std::string, std::string> Fingerprint(const ModelSpec& spec, const Cluster& cluster,
                                               const PlanSettings& settings) {
  nlohmann::json topology = ClusterToJson(cluster);
  const nlohmann::json profile = topology["profile"];
  topology.erase("profile");
  std::map<std::string, std::string> out = {
      {"model", Digest(DumpJson(ModelToJson(spec)))},
      {"topology", DumpJson(topology)},
      {"profile", Digest(DumpJson(profile))},
      {"settings", Digest(DumpJson(SettingsToJson(settings)))}};
  for (const auto& [name, version] : cluster.profile->environment()) {
    out[absl::StrCat("environment.", name)] = version;
  }
  return out;
}

absl::StatusOr<std::string> PlanToJson(const Plan& plan) {
  nlohmann::json units = nlohmann::json::array();
  for (size_t i = 0; i < plan.policies.size(); ++i) {
    units.push_back(
        UnitToJson(plan.share.units[i], plan.policies[i], plan.mesh, plan.settings.family));
  }
  nlohmann::json memory = nlohmann::json::object();
  for (const auto& [name, bytes] : plan.memory.List()) memory[std::string(name)] = bytes;
  memory["total"] = plan.memory.total();
  nlohmann::json content = {{"format", kFormat},
                            {"version", kVersion},
                            {"inputs",
                             {{"model", ModelToJson(plan.spec)},
                              {"cluster", ClusterToJson(plan.cluster)},
                              {"settings", SettingsToJson(plan.settings)}}},
                            {"fingerprint", Fingerprint(plan.spec, plan.cluster, plan.settings)},
                            {"mesh", {{"shape", plan.mesh.shape()}, {"axes", plan.mesh.axes()}}},
                            {"units", units},
                            {"cost", CostToJson(plan.cost)},
                            {"memory", memory},
                            {"cap_bytes", plan.cap_bytes},
                            {"slack_bytes", plan.slack_bytes()},
                            {"reason", plan.reason},
                            {"alternatives", AlternativesToJson(plan)}};
  if (plan.settings.memory.offload) {
    content["host_memory"] = {{"optim", plan.memory.host_optim}};
  }
  content["digest"] = Digest(DumpJson(content));
  return DumpJson(content, 1) + "\n";
}

absl::Status SavePlan(const Plan& plan, const std::string& path) {
  LINS_ASSIGN_OR_RETURN(const std::string text, PlanToJson(plan));
  return SaveFile(path, text);
}

absl::StatusOr<Plan> PlanFromJson(absl::string_view text, absl::string_view what,
                                  const ModelSpec* spec, const Cluster* cluster) {
  LINS_ASSIGN_OR_RETURN(nlohmann::json document, ParseJson(text, what));
  absl::Status status;
  const JsonPlace root(&document, std::string(what), &status);
  const std::string format = root.At("format").String();
  const int64_t version = root.At("version").Int(0, kMost);
  const std::string digest = root.At("digest").String();
  LINS_RETURN_IF_ERROR(status);
  if (format != kFormat || version != kVersion) {
    return InvalidArgument(what, " is '", format, "' of version ", version, ": legal is '", kFormat,
                           "' of version ", kVersion);
  }
  nlohmann::json content = document;
  content.erase("digest");
  if (const std::string now = Digest(DumpJson(content)); now != digest) {
    return InvalidArgument(what, " was changed after it was saved: its digest is '", digest,
                           "', and its content has ", now);
  }
  const JsonPlace inputs = root.At("inputs");
  const ModelSpec model = ModelFromJson(inputs.At("model"));
  const Cluster machines = ClusterFromJson(inputs.At("cluster"));
  const PlanSettings settings = SettingsFromJson(inputs.At("settings"));
  LINS_RETURN_IF_ERROR(status);
  if (spec != nullptr) {
    LINS_RETURN_IF_ERROR(RefuseChanges(ModelToJson(model), ModelToJson(*spec), "model", what));
  }
  if (cluster != nullptr) {
    LINS_RETURN_IF_ERROR(cluster->Validate());
    LINS_RETURN_IF_ERROR(
        RefuseChanges(ClusterToJson(machines), ClusterToJson(*cluster), "cluster", what));
  }
  LINS_RETURN_IF_ERROR(machines.Validate());
  LINS_ASSIGN_OR_RETURN(const Mesh mesh, machines.DataParallelMesh());
  std::vector<Policy> policies;
  for (const JsonPlace& u : root.At("units").Items()) {
    policies.push_back(PolicyFromJson(u.At("policy"), mesh));
  }
  LINS_RETURN_IF_ERROR(status);
  if (policies.empty()) return InvalidArgument(what, ": units is empty");
  LINS_ASSIGN_OR_RETURN(Plan plan, PricePlan(model, machines, policies, settings));

  plan.reason = root.At("reason").String();
  for (const JsonPlace& a : root.At("alternatives").Items()) {
    plan.alternatives.push_back({a.At("name").String(), PolicyFromJson(a.At("policy"), mesh),
                                 CostFromJson(a.At("cost")),
                                 a.At("memory_bytes").Int(-kMost, kMost),
                                 a.At("fits").Int(0, 1) == 1, a.At("why_not").String()});
  }
  const PlanCost cost = CostFromJson(root.At("cost"));
  const int64_t memory = root.At("memory").At("total").Int(-kMost, kMost);
  LINS_RETURN_IF_ERROR(status);
  if (!Near(cost.seconds.total(), plan.cost.seconds.total()) ||
      !Near(cost.exposed, plan.cost.exposed) ||
      !Near(cost.update.longer(), plan.cost.update.longer()) || memory != plan.memory.total()) {
    return InvalidArgument(what, " says ", cost.seconds.total(), " s, exposed ", cost.exposed,
                           " s, update ", cost.update.longer(), " s, and ", memory,
                           " bytes; this version of lins prices it at ", plan.cost.seconds.total(),
                           " s, ", plan.cost.exposed, " s, ", plan.cost.update.longer(), " s and ",
                           plan.memory.total(), " bytes: solve again");
  }
  return plan;
}

absl::StatusOr<Plan> LoadPlan(const std::string& path, const ModelSpec* spec,
                              const Cluster* cluster) {
  std::ifstream in(path);
  if (!in) return InvalidArgument("cannot read plan '", path, "'");
  std::ostringstream text;
  text << in.rdbuf();
  return PlanFromJson(text.str(), path, spec, cluster);
}

}  // namespace lins
