#include "lins_policy/explain.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "lins_policy/evaluate.h"
#include "lins_policy/explain_parts.h"
#include "lins_policy/simulate.h"
#include "lins_policy/solve.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::string Percent(double part, double whole) {
  return whole > 0 ? absl::StrFormat("%.1f %%", 100 * part / whole) : "-";
}

// Units with the same policy, in order of their first.
std::vector<std::pair<Policy, std::vector<size_t>>> ByPolicy(const Plan& plan) {
  std::vector<std::pair<Policy, std::vector<size_t>>> out;
  for (size_t i = 0; i < plan.policies.size(); ++i) {
    auto it = std::find_if(out.begin(), out.end(),
                           [&](const auto& g) { return g.first == plan.policies[i]; });
    if (it == out.end()) it = out.insert(out.end(), {plan.policies[i], {}});
    it->second.push_back(i);
  }
  return out;
}

std::string UnitNames(const Plan& plan, const std::vector<size_t>& units) {
  std::vector<std::string> names;
  for (size_t i = 0; i < units.size() && i < 4; ++i) {
    const Unit& u = plan.share.units[units[i]];
    names.push_back(u.repeat > 1 ? absl::StrCat(u.name, " x", u.repeat) : u.name);
  }
  if (units.size() > 4) names.push_back(absl::StrCat(units.size() - 4, " more"));
  return absl::StrJoin(names, ", ");
}

// The costliest collective of some terms.
std::string MainCollective(const std::vector<CountedCollective>& collectives,
                           std::initializer_list<absl::string_view> terms, double& seconds) {
  const CountedCollective* main = nullptr;
  seconds = 0;
  for (const CountedCollective& c : collectives) {
    if (std::find(terms.begin(), terms.end(), c.collective.term) == terms.end()) continue;
    seconds += c.seconds();
    if (main == nullptr || c.seconds() > main->seconds()) main = &c;
  }
  if (main == nullptr) return "none";
  const PricedCollective& p = main->collective;
  return absl::StrFormat("%s %dx%d, %s, %.6g times", StepKindName(p.op), p.gpus, p.nodes,
                         FormatBytes(p.bytes), main->times());
}

ReportTable PlacementTable(const Plan& plan, const std::vector<CountedCollective>& all) {
  ReportTable table{
      "Placement (pieces: GPUs of a node x nodes)",
      {"units", "state", "pieces", "layout", "bytes per GPU", "main collective", "seconds"},
      {}};
  for (const auto& [policy, units] : ByPolicy(plan)) {
    UnitMemory held;
    std::vector<CountedCollective> of_group;
    for (const size_t i : units) {
      const Unit& u = plan.share.units[i];
      const UnitMemory m =
          MemoryOfUnit(u, policy, plan.mesh, plan.share.training.sizes, plan.settings.memory);
      held.param += u.repeat * m.param;
      held.grad += u.repeat * m.grad;
      held.optim += u.repeat * m.optim;
      held.host_optim += u.repeat * m.host_optim;
    }
    for (const CountedCollective& c : all) {
      if (std::find(units.begin(), units.end(), c.unit) != units.end()) of_group.push_back(c);
    }
    const UnitLayouts at = MakeUnitLayouts(policy, plan.mesh.size(), plan.mesh);
    const auto row = [&](const char* state, const Factors& f, const Layout& layout,
                         const std::string& bytes, std::initializer_list<absl::string_view> terms) {
      double seconds;
      const std::string main = MainCollective(of_group, terms, seconds);
      table.rows.push_back({table.rows.size() % 3 == 0 ? UnitNames(plan, units) : "", state,
                            FactorsToString(f), layout.ToString(), bytes, main,
                            FormatSeconds(seconds)});
    };
    row("P", policy.param, at.param, FormatBytes(held.param), {"T_p"});
    row("G", policy.grad, at.grad, FormatBytes(held.grad), {"T_g"});
    row("OS", policy.optim, at.optim,
        plan.settings.memory.offload ? FormatBytes(held.host_optim) + " in host memory"
                                     : FormatBytes(held.optim),
        {"T_os0", "T_os1"});
  }
  return table;
}

ReportTable CostTable(const Plan& plan, double simulated) {
  const PlanCost& c = plan.cost;
  ReportTable table{absl::StrFormat("Cost of a step of %d micro-batches (%s, objective %s)",
                                    plan.settings.micro_batches, FamilyName(plan.settings.family),
                                    ObjectiveName(plan.settings.objective)),
                    {"term", "seconds", "received per GPU"},
                    {}};
  const auto row = [&](const char* name, double seconds, int64_t bytes) {
    table.rows.push_back({name, FormatSeconds(seconds), FormatBytes(bytes)});
  };
  row("T_p    gathers for compute", c.seconds.t_p, c.bytes.t_p);
  row("T_g    gradients, micro-batches", c.seconds.t_g, c.bytes.t_g);
  row("T_os0  gradients, last one", c.seconds.t_os0, c.bytes.t_os0);
  row("T_os1  updated parameters", c.seconds.t_os1, c.bytes.t_os1);
  row("communication", c.seconds.total(), c.bytes.total());
  table.rows.push_back({"compute", FormatSeconds(c.compute), ""});
  table.rows.push_back({"exposed communication", FormatSeconds(c.exposed), ""});
  if (c.update.optimizer > 0) {
    table.rows.push_back({"optimizer", FormatSeconds(c.update.optimizer), ""});
  }
  if (plan.settings.memory.offload) {
    table.rows.push_back({"to and from host memory", FormatSeconds(c.update.offload), ""});
  }
  table.rows.push_back({"step", FormatSeconds(c.step()), ""});
  table.rows.push_back({"step, simulated as events", FormatSeconds(simulated), ""});
  return table;
}

ReportTable MemoryTable(const Plan& plan) {
  ReportTable table{"Memory per GPU", {"item", "bytes", "of the cap"}, {}};
  const double cap = static_cast<double>(plan.cap_bytes);
  for (const auto& [name, bytes] : plan.memory.List()) {
    if (bytes == 0) continue;
    table.rows.push_back(
        {std::string(name), FormatBytes(bytes), Percent(static_cast<double>(bytes), cap)});
  }
  const int64_t total = plan.memory.total();
  table.rows.push_back({"total", FormatBytes(total), Percent(static_cast<double>(total), cap)});
  table.rows.push_back({"cap", FormatBytes(plan.cap_bytes), ""});
  table.rows.push_back({plan.fits() ? "slack" : "missing",
                        FormatBytes(std::abs(plan.slack_bytes())),
                        Percent(std::abs(static_cast<double>(plan.slack_bytes())), cap)});
  if (plan.settings.memory.offload) {
    table.rows.push_back({"optim in host memory", FormatBytes(plan.memory.host_optim), ""});
    table.rows.push_back({"of all GPUs of a node",
                          FormatBytes(plan.cluster.gpus_per_node * plan.memory.host_optim), ""});
  }
  return table;
}

std::string WhyNot(const Plan& plan, const Alternative& a) {
  if (!a.why_not.empty()) return a.why_not;
  if (plan.factors() == a.policy) return "this plan";
  if (!a.fits) {
    return absl::StrCat("needs ", FormatBytes(a.memory_bytes - plan.cap_bytes), " more memory");
  }
  const double mine = plan.cost.Of(plan.settings.objective),
               other = a.cost.Of(plan.settings.objective);
  if (other <= mine * (1 + plan.settings.tie_epsilon)) {
    if (other >= mine * (1 - plan.settings.tie_epsilon)) return "equal within the tolerance";
    return plan.reason == kGiven ? "cheaper" : "cheaper; not in the space searched";
  }
  return mine > 0 ? absl::StrFormat("costs %.3g times as much", other / mine)
                  : absl::StrCat("costs ", FormatSeconds(other), " more");
}

ReportTable AlternativesTable(const Plan& plan, const std::vector<Alternative>& presets) {
  ReportTable table{
      "Alternatives", {"name", "policy", "communication", "exposed", "memory", "why not"}, {}};
  const auto add = [&](const Alternative& a) {
    table.rows.push_back({a.name, a.policy.ToString(), FormatSeconds(a.cost.seconds.total()),
                          FormatSeconds(a.cost.exposed), FormatBytes(a.memory_bytes),
                          WhyNot(plan, a)});
  };
  for (const Alternative& a : presets) add(a);
  for (const Alternative& a : plan.alternatives) {
    const bool known = std::any_of(presets.begin(), presets.end(),
                                   [&](const Alternative& p) { return p.policy == a.policy; });
    if (known || plan.factors() == a.policy) continue;
    Alternative unnamed = a;
    unnamed.name.assign(1, '-');
    add(unnamed);
  }
  return table;
}

// Whether sharding, or this much of it, is worth its messages.
std::vector<std::string> Warnings(const Plan& plan, const std::vector<Alternative>& presets,
                                  const std::vector<CountedCollective>& collectives) {
  std::vector<std::string> out;
  const std::optional<Policy> all = plan.factors();
  const auto ddp = std::find_if(presets.begin(), presets.end(),
                                [](const Alternative& a) { return a.name == "ddp"; });
  const bool sharded = !all || Product(all->optim) > 1;
  if (ddp != presets.end() && ddp->fits && sharded) {
    out.push_back(absl::StrFormat(
        "all states fit replicated (%s of %s): sharding saves memory that nothing asks for, at "
        "%s of exposed communication against ddp's %s",
        FormatBytes(ddp->memory_bytes), FormatBytes(plan.cap_bytes),
        FormatSeconds(plan.cost.exposed), FormatSeconds(ddp->cost.exposed)));
  }
  if (sharded && plan.mesh.size() >= 2 && plan.mesh.size() <= 4) {
    out.push_back(
        absl::StrFormat("%d ranks: each piece is still 1/%d of a state, so sharding "
                        "saves little",
                        plan.mesh.size(), plan.mesh.size()));
  }
  double count = 0, small = 0;
  for (const CountedCollective& c : collectives) {
    count += c.times();
    if (LatencyBound(*plan.cluster.profile, c.collective)) small += c.times();
  }
  if (count > 0 && small >= count / 2) {
    out.push_back(absl::StrFormat(
        "%.6g of a step's %.6g collectives are bound by latency, not by bandwidth: larger units "
        "or fewer pieces would send fewer messages",
        small, count));
  }
  if (plan.cost.compute > 0 && plan.cost.exposed > plan.cost.compute) {
    out.push_back(absl::StrFormat(
        "a step exposes %s of communication beside %s of compute: %d tokens per GPU and "
        "micro-batch are too few to hide it; longer sequences or larger micro-batches would",
        FormatSeconds(plan.cost.exposed), FormatSeconds(plan.cost.compute), plan.spec.tokens()));
  }
  if (plan.settings.memory.offload) {
    MemoryOptions on_device = plan.settings.memory;
    on_device.offload = false;
    const int64_t needed = MemoryOf(plan.share, plan.policies, plan.mesh, on_device).total();
    if (needed <= plan.cap_bytes) {
      out.push_back(
          absl::StrFormat("this placement fits without offload (%s of %s), which saves %s a step",
                          FormatBytes(needed), FormatBytes(plan.cap_bytes),
                          FormatSeconds(plan.cost.update.longer() - plan.cost.update.optimizer)));
    }
  }
  if (plan.cluster.profile->source() == "model") {
    out.push_back(absl::StrCat("profile '", plan.cluster.profile->name(),
                               "' is a model of link speeds, not a measurement"));
  }
  return out;
}

// The first reason for each term that has a time which was not measured.
std::vector<std::pair<std::string, std::string>> Extrapolated(
    const std::vector<CountedCollective>& all) {
  std::map<std::string, std::string> first;
  for (const CountedCollective& c : all) {
    const PricedCollective& p = c.collective;
    if (!p.each.extrapolated) continue;
    first.try_emplace(std::string(p.term),
                      absl::StrFormat("%s of %s over %dx%d: %s", StepKindName(p.op),
                                      FormatBytes(p.bytes), p.gpus, p.nodes, p.each.why));
  }
  return {first.begin(), first.end()};
}

}  // namespace

absl::StatusOr<std::vector<CountedCollective>> CollectivesOf(const Plan& plan) {
  const Pricer pricer(plan.mesh, plan.cluster.profile.get(), plan.share.training.sizes,
                      plan.settings.family, plan.settings.bucket_bytes);
  const bool whole = UpdatesWhole(plan.settings, plan.policies);
  const int64_t all = plan.share.trainable();
  std::vector<CountedCollective> out;
  for (size_t i = 0; i < plan.share.units.size(); ++i) {
    const Unit& u = plan.share.units[i];
    LINS_ASSIGN_OR_RETURN(std::vector<PricedCollective> of_unit,
                          pricer.Collectives(u, plan.policies[i], plan.settings.micro_batches));
    for (PricedCollective& c : of_unit) {
      if (whole && c.term == "T_os1") {  // a part of the broadcasts of all units
        c.bytes = PaddedTotal(all, plan.mesh) * plan.share.training.sizes.param /
                  Product(plan.policies[i].optim);
        LINS_ASSIGN_OR_RETURN(c.each, plan.cluster.profile->Time(c.op, c.bytes, c.gpus, c.nodes));
        c.times *= static_cast<double>(u.trainable()) / static_cast<double>(all);
      }
      out.push_back({i, u.repeat, std::move(c)});
    }
  }
  return out;
}

bool LatencyBound(const Profile& profile, const PricedCollective& c) {
  return profile.Seconds(c.op, c.bytes / 2, c.gpus, c.nodes) > 0.75 * c.each.seconds;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ExtrapolatedTerms(
    const Plan& plan) {
  LINS_ASSIGN_OR_RETURN(const std::vector<CountedCollective> all, CollectivesOf(plan));
  return Extrapolated(all);
}

absl::StatusOr<Report> Explain(const Plan& plan) {
  LINS_ASSIGN_OR_RETURN(const std::vector<CountedCollective> collectives, CollectivesOf(plan));
  LINS_ASSIGN_OR_RETURN(const std::vector<Alternative> presets, PricePresets(plan));
  LINS_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(plan));
  Report report;
  report.title =
      absl::StrFormat("%s (%.4g billion parameters) on %d nodes x %d GPUs, profile %s",
                      plan.spec.name, static_cast<double>(plan.spec.parameters()) / 1e9,
                      plan.cluster.nodes, plan.cluster.gpus_per_node, plan.cluster.profile->name());
  report.tables = {PlacementTable(plan, collectives), CostTable(plan, simulation.step),
                   MemoryTable(plan), AlternativesTable(plan, presets)};
  report.notes.push_back(absl::StrCat("chosen: ", plan.reason));
  if (plan.settings.memory.offload) {
    report.notes.push_back(absl::StrCat(
        "offload: OS in host memory, over a link of ",
        FormatBytes(static_cast<int64_t>(plan.cluster.host_bytes_per_second())), "/s",
        plan.cluster.host_bandwidth > 0 ? ""
                                        : ", which is assumed (PCIe generation 4, 16 lanes), not "
                                          "measured: host_bandwidth says another"));
  }
  for (const auto& [term, why] : Extrapolated(collectives)) {
    report.notes.push_back(absl::StrCat(term, " is extrapolated: ", why));
  }
  report.warnings = Warnings(plan, presets, collectives);
  if (!plan.fits()) {
    report.warnings.insert(
        report.warnings.begin(),
        absl::StrCat("this plan needs ", FormatBytes(-plan.slack_bytes()), " more than the cap"));
  }
  return report;
}

Report ExplainFrontier(const std::vector<Plan>& frontier) {
  Report report;
  if (frontier.empty()) return report;
  const Plan& leanest = frontier.front();
  report.title = absl::StrFormat("Time against memory: %s on %d nodes x %d GPUs", leanest.spec.name,
                                 leanest.cluster.nodes, leanest.cluster.gpus_per_node);
  ReportTable table{
      "",
      {"policy", "memory", "communication", "exposed", "step", "speed-up", "memory taken", "fits"},
      {}};
  for (const Plan& p : frontier) {
    const double step = p.cost.step() > 0 ? p.cost.step() : p.cost.seconds.total();
    const double base =
        leanest.cost.step() > 0 ? leanest.cost.step() : leanest.cost.seconds.total();
    table.rows.push_back(
        {p.PolicyText(), FormatBytes(p.memory.total()), FormatSeconds(p.cost.seconds.total()),
         FormatSeconds(p.cost.exposed), FormatSeconds(p.cost.step()),
         step > 0 ? absl::StrFormat("%.3f", base / step) : "-",
         FormatBytes(p.memory.total() - leanest.memory.total()), p.fits() ? "yes" : "no"});
  }
  report.tables.push_back(std::move(table));
  report.notes.push_back(
      "memory taken: of each GPU, beyond the leanest plan; under a quota it is taken from other "
      "jobs");
  return report;
}

}  // namespace lins
