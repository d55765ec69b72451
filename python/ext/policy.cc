// lins._planning, second part: policies and unit plans.
#include "common.h"
#include "lins_policy/unit_plan.h"

namespace lins {
void BindPolicy(py::module_& m) {
  py::class_<Policy>(m, "Placement", "The factors of P, G and OS, fastest axis first.")
      .def(py::init([](const std::string& text, const Mesh& mesh, const std::string& space) {
             return ValueOrThrow(ParsePolicy(text, mesh, ValueOrThrow(ParseSpace(space))));
           }),
           py::arg("policy"), py::arg("mesh"), py::arg("space") = "nested")
      .def_property_readonly("param", [](const Policy& p) { return ToTuple(p.param); })
      .def_property_readonly("grad", [](const Policy& p) { return ToTuple(p.grad); })
      .def_property_readonly("optim", [](const Policy& p) { return ToTuple(p.optim); })
      .def_property_readonly("between", [](const Policy& p) { return ToTuple(p.between); })
      .def("__eq__", [](const Policy& a, const Policy& b) { return a == b; })
      .def("__repr__", &Policy::ToString);

  py::class_<StateSizes>(m, "StateSizes", "Bytes per element of each state.")
      .def(py::init([](int64_t param, int64_t grad, int64_t master, int64_t moments) {
             return StateSizes{param, grad, master, moments};
           }),
           py::arg("param") = 4, py::arg("grad") = 4, py::arg("master") = 0,
           py::arg("moments") = 8);

  py::class_<UnitPlan>(m, "UnitPlan",
                       "Layouts of a unit's states and the redistributions of a step.")
      .def(py::init([](const Policy& policy, int64_t numel, const Mesh& mesh,
                       const StateSizes& sizes, const std::string& family, int64_t bucket_bytes) {
             return ValueOrThrow(MakeUnitPlan(policy, numel, mesh, sizes, {},
                                              ValueOrThrow(ParseFamily(family)), bucket_bytes));
           }),
           py::arg("placement"), py::arg("numel"), py::arg("mesh"), py::arg("sizes") = StateSizes(),
           py::arg("family") = "planned", py::arg("bucket_bytes") = kDefaultBucketBytes)
      .def_readonly("placement", &UnitPlan::policy)
      .def_readonly("total", &UnitPlan::total)
      .def_readonly("param", &UnitPlan::param)
      .def_readonly("grad", &UnitPlan::grad)
      .def_readonly("optim", &UnitPlan::optim)
      .def_readonly("between", &UnitPlan::between)
      .def_readonly("gather", &UnitPlan::gather)
      .def_readonly("regather", &UnitPlan::regather)
      .def_property_readonly("family", [](const UnitPlan& p) { return Str(FamilyName(p.family)); })
      .def_readonly("scatter", &UnitPlan::scatter)
      .def_readonly("accumulate", &UnitPlan::accumulate)
      .def_readonly("reduce", &UnitPlan::reduce)
      .def_readonly("update", &UnitPlan::update)
      .def(
          "held_bytes",
          [](const UnitPlan& p, const StateSizes& sizes) {
            const StateBytes b = HeldBytes(p, sizes);
            py::dict d;
            d["param"] = b.param;
            d["grad"] = b.grad;
            d["optim"] = b.optim;
            return d;
          },
          py::arg("sizes") = StateSizes(), "Bytes a rank keeps between steps, by state.")
      .def(
          "traffic",
          [](const UnitPlan& p, int64_t micro_batches) {
            const StepTraffic t = Traffic(p, micro_batches);
            py::dict d;
            d["gather"] = t.gather;
            d["accumulate"] = t.accumulate;
            d["reduce"] = t.reduce;
            d["update"] = t.update;
            return d;
          },
          py::arg("micro_batches") = 1, "Bytes the worst rank receives in one step, by moment.");

  m.def(
      "legal_plans",
      [](int64_t gpus_per_node, int64_t nodes, const std::string& space) {
        if (gpus_per_node < 1 || nodes < 1)
          throw Error("gpus_per_node and nodes must be at least 1");
        py::list out;
        for (const Policy& p :
             LegalPolicies(gpus_per_node, nodes, ValueOrThrow(ParseSpace(space)))) {
          out.append(py::make_tuple(ToTuple(p.param), ToTuple(p.grad), ToTuple(p.optim)));
        }
        return out;
      },
      py::arg("gpus_per_node"), py::arg("nodes"), py::arg("space") = "nested",
      "All legal ((p0, p1), (g0, g1), (o0, o1)): GPUs per node x nodes of P, G and OS.");
}

}  // namespace lins
