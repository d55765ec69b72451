#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lins_policy/evaluate.h"
#include "lins_policy/explain.h"
#include "lins_policy/explain_parts.h"
#include "lins_policy/json_diff.h"
#include "lins_policy/plan_file.h"
#include "lins_policy/plan_inputs_json.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::string Change(double a, double b) {
  if (a == b) return "same";
  return a > 0 ? absl::StrFormat("%+.1f %%", 100 * (b / a - 1)) : "-";
}

nlohmann::json Inputs(const Plan& plan) {
  nlohmann::json cluster = ClusterToJson(plan.cluster);
  cluster["profile"] = {{"name", plan.cluster.profile->name()},
                        {"digest", Fingerprint(plan.spec, plan.cluster, plan.settings)["profile"]}};
  return {{"model", ModelToJson(plan.spec)},
          {"cluster", cluster},
          {"settings", SettingsToJson(plan.settings)}};
}

}  // namespace

absl::StatusOr<Report> Why(const Plan& plan, absl::string_view name) {
  const std::vector<Unit>& units = plan.share.units;
  const auto it =
      std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
  if (it == units.end()) {
    return InvalidArgument(
        "no unit '", name, "': legal are ",
        absl::StrJoin(units.begin(), units.begin() + std::min<size_t>(units.size(), 12), ", ",
                      [](std::string* out, const Unit& u) { absl::StrAppend(out, u.name); }),
        units.size() > 12 ? ", ..." : "");
  }
  const size_t at = static_cast<size_t>(it - units.begin());
  const Policy& chosen = plan.policies[at];
  LINS_ASSIGN_OR_RETURN(Evaluator evaluator,
                        Evaluator::Create(plan.spec, plan.cluster, plan.settings));
  LINS_ASSIGN_OR_RETURN(const std::vector<CountedCollective> all, CollectivesOf(plan));

  Report report;
  report.title = absl::StrFormat("%s: %s, %d parameters, %d alike", name, chosen.ToString(),
                                 it->parameters, it->repeat);
  ReportTable messages{"Collectives of a step",
                       {"term", "operation", "group", "bytes", "times", "seconds", "bound by"},
                       {}};
  for (const CountedCollective& c : all) {
    if (c.unit != at) continue;
    const PricedCollective& p = c.collective;
    messages.rows.push_back({std::string(p.term), std::string(StepKindName(p.op)),
                             absl::StrCat(p.gpus, "x", p.nodes), FormatBytes(p.bytes),
                             absl::StrFormat("%.6g", c.times()), FormatSeconds(c.seconds()),
                             LatencyBound(*plan.cluster.profile, p) ? "latency" : "bandwidth"});
  }
  report.tables.push_back(std::move(messages));

  struct Row {
    Policy policy;
    double cost;
    int64_t memory;  // of the whole plan with this unit changed
  };
  std::vector<Row> rows;
  std::vector<Policy> legal = LegalPolicies(plan.mesh, plan.settings.space);
  // A policy given by hand may lie outside the space.
  if (std::find(legal.begin(), legal.end(), chosen) == legal.end()) legal.push_back(chosen);
  const Objective objective = plan.settings.objective;
  LINS_ASSIGN_OR_RETURN(const PlanCost mine, evaluator.CostOfUnit(at, chosen));
  for (const Policy& p : legal) {
    LINS_ASSIGN_OR_RETURN(const PlanCost cost, evaluator.CostOfUnit(at, p));
    std::vector<Policy> changed = plan.policies;
    changed[at] = p;
    rows.push_back({p, cost.Of(objective), evaluator.Memory(changed).total()});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::make_pair(a.cost, a.memory) < std::make_pair(b.cost, b.memory);
  });
  ReportTable others{
      absl::StrCat("Policies of this unit, by ", ObjectiveName(objective), " seconds"),
      {"policy", "seconds", "plan's memory", "why not"},
      {}};
  for (const Row& r : rows) {
    if (others.rows.size() >= 15 && r.policy != chosen) continue;
    std::string why = "chosen";
    if (r.policy != chosen) {
      if (r.memory > plan.cap_bytes) {
        why = absl::StrCat("the plan would miss ", FormatBytes(r.memory - plan.cap_bytes));
      } else if (r.cost > mine.Of(objective)) {
        why = absl::StrCat("costs ", FormatSeconds(r.cost - mine.Of(objective)), " more");
      } else if (plan.settings.uniform) {
        why = "all units share one choice";
      } else {
        why = "its memory is worth more in other units";
      }
    }
    others.rows.push_back({r.policy.ToString(), FormatSeconds(r.cost), FormatBytes(r.memory), why});
  }
  report.tables.push_back(std::move(others));
  return report;
}

absl::StatusOr<Report> Diff(const Plan& a, const Plan& b) {
  Report report;
  report.title = absl::StrCat(a.PolicyText(), " against ", b.PolicyText());
  ReportTable inputs{"Inputs", {"input", "first", "second"}, {}};
  for (const JsonDifference& d : DiffJson(Inputs(a), Inputs(b))) {
    inputs.rows.push_back({d.path, d.a, d.b});
  }
  if (!inputs.rows.empty()) report.tables.push_back(std::move(inputs));

  ReportTable placement{"Placement", {"unit", "first", "second"}, {}};
  const auto find = [](const Plan& plan, const std::string& unit) -> std::string {
    for (size_t i = 0; i < plan.policies.size(); ++i) {
      if (plan.share.units[i].name == unit) return plan.policies[i].ToString();
    }
    return "-";
  };
  for (size_t i = 0; i < a.policies.size(); ++i) {
    const std::string& unit = a.share.units[i].name;
    const std::string x = a.policies[i].ToString(), y = find(b, unit);
    if (x != y) placement.rows.push_back({unit, x, y});
  }
  for (size_t i = 0; i < b.policies.size(); ++i) {
    const std::string& unit = b.share.units[i].name;
    if (find(a, unit) == "-") placement.rows.push_back({unit, "-", b.policies[i].ToString()});
  }
  if (!placement.rows.empty()) report.tables.push_back(std::move(placement));

  ReportTable cost{"Cost of a step", {"term", "first", "second", "change"}, {}};
  const auto seconds = [&](const char* name, double x, double y) {
    cost.rows.push_back({name, FormatSeconds(x), FormatSeconds(y), Change(x, y)});
  };
  seconds("T_p", a.cost.seconds.t_p, b.cost.seconds.t_p);
  seconds("T_g", a.cost.seconds.t_g, b.cost.seconds.t_g);
  seconds("T_os0", a.cost.seconds.t_os0, b.cost.seconds.t_os0);
  seconds("T_os1", a.cost.seconds.t_os1, b.cost.seconds.t_os1);
  seconds("communication", a.cost.seconds.total(), b.cost.seconds.total());
  seconds("exposed", a.cost.exposed, b.cost.exposed);
  seconds("compute", a.cost.compute, b.cost.compute);
  const OptimizerSeconds &u = a.cost.update, &v = b.cost.update;
  if (u.optimizer > 0 || v.optimizer > 0) seconds("optimizer", u.optimizer, v.optimizer);
  if (u.offload > 0 || v.offload > 0) seconds("to and from host memory", u.offload, v.offload);
  seconds("step", a.cost.step(), b.cost.step());
  report.tables.push_back(std::move(cost));

  ReportTable memory{"Memory per GPU", {"item", "first", "second", "change"}, {}};
  const auto x = a.memory.List(), y = b.memory.List();
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].second == 0 && y[i].second == 0) continue;
    memory.rows.push_back(
        {std::string(x[i].first), FormatBytes(x[i].second), FormatBytes(y[i].second),
         Change(static_cast<double>(x[i].second), static_cast<double>(y[i].second))});
  }
  memory.rows.push_back(
      {"total", FormatBytes(a.memory.total()), FormatBytes(b.memory.total()),
       Change(static_cast<double>(a.memory.total()), static_cast<double>(b.memory.total()))});
  if (const int64_t x = a.memory.host_optim, y = b.memory.host_optim; x > 0 || y > 0) {
    memory.rows.push_back({"optim in host memory", FormatBytes(x), FormatBytes(y),
                           Change(static_cast<double>(x), static_cast<double>(y))});
  }
  report.tables.push_back(std::move(memory));
  return report;
}

}  // namespace lins
