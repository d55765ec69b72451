// lins._planning: plans, solving, explanations.
#include <pybind11/stl/filesystem.h>

#include <filesystem>

#include "common.h"
#include "lins_policy/explain.h"
#include "lins_policy/knapsack.h"
#include "lins_policy/plan_file.h"
#include "lins_policy/simulate.h"
#include "lins_policy/solve.h"
#include "lins_policy/table3.h"
#include "plan_settings.h"

namespace lins {
namespace {

// As ValueOrThrow; a plan that does not fit is a lins.Infeasible.
Plan PlanOrThrow(absl::StatusOr<Plan> plan) {
  if (const auto answer = InfeasibleOf(plan.status())) {
    const py::object type = py::module_::import("lins.errors").attr("Infeasible");
    py::dict largest;
    for (const auto& [name, bytes] : answer->largest) largest[name.c_str()] = bytes;
    const py::object error =
        type(Str(plan.status().message()), answer->least_bytes, largest, answer->suggestions);
    PyErr_SetObject(type.ptr(), error.ptr());
    throw py::error_already_set();
  }
  return ValueOrThrow(std::move(plan));
}

py::object FactorsOf(const Plan& plan) {
  const std::optional<Policy> all = plan.factors();
  if (!all) return py::none();
  py::dict out;
  out["param"] = ToTuple(all->param);
  out["grad"] = ToTuple(all->grad);
  out["optim"] = ToTuple(all->optim);
  if (!all->between.empty()) out["between"] = ToTuple(all->between);
  return out;
}

template <typename T>
py::dict TermsOf(const CostTerms<T>& t) {
  py::dict out;
  out["T_p"] = t.t_p;
  out["T_g"] = t.t_g;
  out["T_os0"] = t.t_os0;
  out["T_os1"] = t.t_os1;
  out["total"] = t.total();
  return out;
}

py::dict CostOf(const PlanCost& cost) {
  py::dict out = TermsOf(cost.seconds);
  out["compute"] = cost.compute;
  out["exposed"] = cost.exposed;
  out["optimizer"] = cost.update.optimizer;
  out["offload"] = cost.update.offload;
  out["step"] = cost.step();
  out["extra_micro_batch"] = cost.extra_micro_batch;
  return out;
}

py::dict MemoryOf(const Plan& plan) {
  py::dict out;
  for (const auto& [name, bytes] : plan.memory.List()) out[Str(name).c_str()] = bytes;
  out["total"] = plan.memory.total();
  return out;
}

py::list AlternativesOf(const std::vector<Alternative>& alternatives) {
  py::list out;
  for (const Alternative& a : alternatives) {
    py::dict d;
    d["name"] = a.name;
    d["policy"] = a.policy.ToString();
    d["cost"] = CostOf(a.cost);
    d["memory_bytes"] = a.memory_bytes;
    d["fits"] = a.fits;
    d["why_not"] = a.why_not;
    out.append(d);
  }
  return out;
}

// (4, 1), [4, 1] or 8, spread along the chain.
Factors ToFactors(const char* name, const py::handle& given, const Mesh& mesh) {
  if (py::isinstance<py::int_>(given)) {
    return ValueOrThrow(SpreadFactor(CastTo<int64_t>(name, given), mesh));
  }
  const auto numbers = CastTo<std::vector<int64_t>>(name, given);
  return Factors(numbers.begin(), numbers.end());
}

// Takes param, grad, optim and between, or policy, out of `given`.
std::optional<Policy> TakePolicy(py::dict& given, const Mesh& mesh) {
  const auto take = [&](const char* name) {
    const py::object value = given.contains(name) ? py::object(given[name]) : py::none();
    if (given.contains(name)) PyDict_DelItemString(given.ptr(), name);
    return value;
  };
  const py::object text = take("policy"), p = take("param"), g = take("grad"), o = take("optim"),
                   b = take("between");
  const bool factors = !p.is_none() || !g.is_none() || !o.is_none() || !b.is_none();
  if (!text.is_none()) {
    if (factors) throw Error("give policy, or param, grad and optim, not both");
    return ValueOrThrow(ParsePolicy(CastTo<std::string>("policy", text), mesh, Space::kFull));
  }
  if (!factors) return std::nullopt;
  if (p.is_none() || g.is_none() || o.is_none()) throw Error("give all of param, grad and optim");
  Policy policy{
      ToFactors("param", p, mesh), ToFactors("grad", g, mesh), ToFactors("optim", o, mesh), {}};
  if (!b.is_none()) policy.between = ToFactors("between", b, mesh);
  return policy;
}

PlanInputs InputsOf(const ModelSpec& spec, const Cluster& cluster, py::dict& given,
                    const std::string& what, const std::string& legal = "") {
  PlanInputs inputs{spec, cluster, {}};
  ApplySettings(given, inputs);
  RefuseRest(given, what, legal);
  return inputs;
}

Plan WhatIf(const Plan& plan, const py::kwargs& changes) {
  py::dict given(changes);
  PlanInputs inputs{plan.spec, plan.cluster, plan.settings};
  ApplyModel(given, inputs);
  ApplyCluster(given, inputs);
  const Mesh mesh = ValueOrThrow(inputs.cluster.DataParallelMesh());
  const std::optional<Policy> policy = TakePolicy(given, mesh);
  ApplySettings(given, inputs);
  RefuseRest(given, "what_if",
             ", micro_batch, recompute, optimizer, nodes, gpus_per_node, memory_bytes, "
             "quota_bytes, flops_per_second, host_bandwidth, memory_bandwidth, tensor_parallel, "
             "pipeline_parallel, profile, param, grad, optim, between, policy");
  if (policy) {
    return ValueOrThrow(PricePlan(inputs.spec, inputs.cluster, {*policy}, inputs.settings));
  }
  return PlanOrThrow(Solve(inputs.spec, inputs.cluster, inputs.settings));
}

py::dict LayoutsOfUnit(const Plan& plan, const std::string& unit) {
  for (size_t i = 0; i < plan.share.units.size(); ++i) {
    const Unit& u = plan.share.units[i];
    if (u.name != unit) continue;
    const UnitLayouts at = LayoutsOf(u, plan.policies[i], plan.mesh);
    py::dict out;
    out["param"] = at.param;
    out["grad"] = at.grad;
    out["optim"] = at.optim;
    out["between"] = at.between;
    return out;
  }
  throw Error("no unit '" + unit + "' in " + plan.ToString());
}

void BindReport(py::module_& m) {
  py::class_<ReportTable>(m, "ReportTable", "A table of texts.")
      .def_readonly("title", &ReportTable::title)
      .def_readonly("columns", &ReportTable::columns)
      .def_readonly("rows", &ReportTable::rows);
  py::class_<Report>(m, "Report", py::dynamic_attr(),
                     "Tables with notes and warnings; print it, or look at its parts.")
      .def_readonly("title", &Report::title)
      .def_readonly("tables", &Report::tables)
      .def_readonly("notes", &Report::notes)
      .def_readonly("warnings", &Report::warnings)
      .def("__str__", &Report::ToString)
      .def("__repr__", &Report::ToString);
}

void BindSimulation(py::module_& m) {
  py::class_<SimulatedEvent>(m, "SimulatedEvent", "One computation or collective of a step.")
      .def_readonly("unit", &SimulatedEvent::unit)
      .def_readonly("what", &SimulatedEvent::what)
      .def_readonly("micro_batch", &SimulatedEvent::micro_batch)
      .def_readonly("start", &SimulatedEvent::start)
      .def_readonly("end", &SimulatedEvent::end)
      .def_readonly("on_link", &SimulatedEvent::on_link);
  py::class_<Simulation>(m, "Simulation", "A training step as events; seconds.")
      .def_readonly("step", &Simulation::step)
      .def_readonly("compute", &Simulation::compute)
      .def_readonly("optimizer", &Simulation::optimizer)
      .def_readonly("link_busy", &Simulation::link_busy)
      .def_property_readonly("exposed", &Simulation::exposed)
      .def_readonly("events", &Simulation::events)
      .def("chrome_trace", &ToChromeTrace, "JSON for chrome://tracing and Perfetto.");
}

void BindPlan(py::module_& m) {
  py::class_<Plan>(m, "Plan", "Placements of P, G and OS of every unit, with cost and reasons.")
      .def_property_readonly("factors", &FactorsOf,
                             "{'param': (gpus, nodes), ...} when all units share one choice.")
      .def_property_readonly(
          "policies",
          [](const Plan& p) {
            py::dict out;
            for (size_t i = 0; i < p.policies.size(); ++i) {
              out[p.share.units[i].name.c_str()] = p.policies[i].ToString();
            }
            return out;
          },
          "{unit: 'P=.. G=.. OS=..'}")
      .def_property_readonly(
          "cost", [](const Plan& p) { return CostOf(p.cost); }, "Seconds of a step by term.")
      .def_property_readonly(
          "recv_bytes", [](const Plan& p) { return TermsOf(p.cost.bytes); },
          "Bytes received in a step by the worst rank, by term.")
      .def_property_readonly("memory", &MemoryOf, "Bytes of one GPU by item.")
      .def_property_readonly(
          "host_memory",
          [](const Plan& p) {
            py::dict out;
            out["optim"] = p.memory.host_optim;
            return out;
          },
          "Bytes of the host's memory for one GPU, by item: with offload, OS.")
      .def_property_readonly("offload", [](const Plan& p) { return p.settings.memory.offload; })
      .def_property_readonly("offload_chunk_bytes",
                             [](const Plan& p) { return p.settings.memory.offload_chunk_bytes; })
      .def_readonly("cap_bytes", &Plan::cap_bytes)
      .def_property_readonly("slack_bytes", &Plan::slack_bytes)
      .def_property_readonly("fits", &Plan::fits)
      .def_readonly("reason", &Plan::reason)
      .def_property_readonly("alternatives",
                             [](const Plan& p) { return AlternativesOf(p.alternatives); })
      .def_property_readonly(
          "presets", [](const Plan& p) { return AlternativesOf(ValueOrThrow(PricePresets(p))); },
          "The named policies, priced for the same problem.")
      .def_property_readonly(
          "extrapolated",
          [](const Plan& p) {
            py::dict out;
            for (const auto& [term, why] : ValueOrThrow(ExtrapolatedTerms(p))) {
              out[term.c_str()] = why;
            }
            return out;
          },
          "{term: why} of terms whose times were not measured.")
      .def_readonly("spec", &Plan::spec)
      .def_readonly("cluster", &Plan::cluster)
      .def_readonly("mesh", &Plan::mesh, "The data-parallel mesh, (node, gpu).")
      .def_property_readonly("units", [](const Plan& p) { return p.share.units; })
      .def_property_readonly("micro_batches",
                             [](const Plan& p) { return p.settings.micro_batches; })
      .def_property_readonly("family",
                             [](const Plan& p) { return Str(FamilyName(p.settings.family)); })
      .def_property_readonly("gradient_buckets",
                             [](const Plan& p) { return p.settings.memory.gradient_buckets; })
      .def_property_readonly("bucket_bytes", [](const Plan& p) { return p.settings.bucket_bytes; })
      .def_property_readonly("objective",
                             [](const Plan& p) { return Str(ObjectiveName(p.settings.objective)); })
      .def_property_readonly("space", [](const Plan& p) { return SpaceName(p.settings.space); })
      .def_property_readonly("prefetch", [](const Plan& p) { return p.settings.overlap.prefetch; })
      .def("layouts", &LayoutsOfUnit, py::arg("unit"),
           "{'param': Layout, 'grad': .., 'optim': .., 'between': ..} of a unit's flat buffer.")
      .def(
          "explain", [](const Plan& p) { return ValueOrThrow(Explain(p)); },
          "What the plan is, what it costs, and why it is this one.")
      .def(
          "why", [](const Plan& p, const std::string& unit) { return ValueOrThrow(Why(p, unit)); },
          py::arg("unit"), "One unit: its collectives, and every policy it could have.")
      .def("what_if", &WhatIf,
           "Solves again with changes: any setting of lins.solve(), and micro_batch, recompute,\n"
           "optimizer, nodes, gpus_per_node, memory_bytes, quota_bytes, flops_per_second,\n"
           "host_bandwidth, memory_bandwidth, profile, tensor_parallel, pipeline_parallel. With\n"
           "param, grad and optim, or policy, it prices that placement.")
      .def(
          "simulate", [](const Plan& p) { return ValueOrThrow(Simulate(p)); },
          "One training step as events.")
      .def(
          "save",
          [](const Plan& p, const std::filesystem::path& path) {
            ThrowIfError(SavePlan(p, path.string()));
          },
          py::arg("path"))
      .def("to_json", [](const Plan& p) { return ValueOrThrow(PlanToJson(p)); })
      .def_static(
          "load",
          [](const std::filesystem::path& path, const ModelSpec* spec, const Cluster* cluster) {
            return ValueOrThrow(LoadPlan(path.string(), spec, cluster));
          },
          py::arg("path"), py::arg("spec") = py::none(), py::arg("cluster") = py::none(),
          "Reads a saved plan. With a spec or cluster, refuses a plan that was made for\n"
          "another one, and names what changed.")
      .def_static(
          "uniform",
          [](const ModelSpec& spec, const Cluster& cluster, const py::kwargs& settings) {
            py::dict given(settings);
            const Mesh mesh = ValueOrThrow(cluster.DataParallelMesh());
            const std::optional<Policy> policy = TakePolicy(given, mesh);
            if (!policy) throw Error("give param, grad and optim, or policy");
            const PlanInputs in = InputsOf(spec, cluster, given, "Plan.uniform",
                                           ", param, grad, optim, between, policy");
            return ValueOrThrow(PricePlan(in.spec, in.cluster, {*policy}, in.settings));
          },
          py::arg("spec"), py::arg("cluster"),
          "Prices one placement of all units: param, grad, optim (and between) as (gpus,\n"
          "nodes) or numbers, or policy as a string; and lins.solve()'s settings. Never\n"
          "refuses for memory.")
      .def("__repr__", &Plan::ToString);
}

}  // namespace

void BindSolving(py::module_& m) {
  BindReport(m);
  BindSimulation(m);
  BindPlan(m);
  m.def("solve", [](const ModelSpec& spec, const Cluster& cluster, const py::kwargs& settings) {
    py::dict given(settings);
    const PlanInputs in = InputsOf(spec, cluster, given, "solve");
    return PlanOrThrow(Solve(in.spec, in.cluster, in.settings));
  });
  m.def(
      "frontier",
      [](const ModelSpec& spec, const Cluster& cluster, int points, const py::kwargs& settings) {
        py::dict given(settings);
        const PlanInputs in = InputsOf(spec, cluster, given, "frontier");
        return ValueOrThrow(Frontier(in.spec, in.cluster, in.settings, points));
      },
      py::arg("spec"), py::arg("cluster"), py::arg("points") = 16);
  m.def("explain_frontier", &ExplainFrontier, py::arg("frontier"),
        "Time against memory: a Report of lins.frontier()'s plans.");
  m.def(
      "diff", [](const Plan& a, const Plan& b) { return ValueOrThrow(Diff(a, b)); }, py::arg("a"),
      py::arg("b"),
      "A Report of what differs between two plans: inputs, placements, costs, memory.");
  m.def(
      "reproduce_table3",
      [] {
        std::vector<Plan> out;
        for (Table3Row& row : ValueOrThrow(ReproduceTable3())) out.push_back(std::move(row.plan));
        return out;
      },
      "The three plans of the paper (Lins, IWQoS 2024, table 3), found again: plans in the order\n"
      "7B, 13B, 30B. explain_table3() shows what decides each.");
  m.def(
      "explain_table3", [] { return ValueOrThrow(ExplainTable3(ValueOrThrow(ReproduceTable3()))); },
      "A Report of the paper's plans, their neighbours, and what would change them.");
  m.def(
      "solve_knapsack",
      [](const std::vector<std::vector<std::pair<int64_t, int64_t>>>& classes,
         int64_t capacity) -> py::object {
        std::vector<std::vector<KnapsackItem>> items;
        for (const auto& of_class : classes) {
          items.emplace_back();
          for (const auto& [weight, cost] : of_class) items.back().push_back({weight, cost});
        }
        const KnapsackResult r = SolveKnapsack(items, capacity);
        if (!r.feasible) return py::none();
        return py::make_tuple(r.choice, r.weight, r.cost);
      },
      py::arg("classes"), py::arg("capacity"),
      "The multiple-choice knapsack behind a choice per unit: of every class of (weight, cost) "
      "one\n"
      "item, the least cost within the capacity. (choice, weight, cost), or None.");
  m.def(
      "fingerprint",
      [](const ModelSpec& spec, const Cluster& cluster, const py::kwargs& settings) {
        py::dict given(settings);
        const PlanInputs in = InputsOf(spec, cluster, given, "fingerprint");
        return Fingerprint(in.spec, in.cluster, in.settings);
      },
      py::arg("spec"), py::arg("cluster"),
      "{part: text} that differs when a plan's model, topology, profile or settings do.");
  m.attr("setting_names") = ToTuple(SettingNames());
}

}  // namespace lins
