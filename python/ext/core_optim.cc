// Optimizers, for lins.optimizers.
#include "core.h"
#include "runtime/optimizer.h"

namespace lins {
namespace {

void BindOptions(py::module_& m) {
  py::class_<AdamOptions>(m, "AdamOptions")
      .def(py::init<>())
      .def_readwrite("lr", &AdamOptions::lr)
      .def_readwrite("beta1", &AdamOptions::beta1)
      .def_readwrite("beta2", &AdamOptions::beta2)
      .def_readwrite("eps", &AdamOptions::eps)
      .def_readwrite("weight_decay", &AdamOptions::weight_decay)
      .def_readwrite("maximize", &AdamOptions::maximize)
      .def_readwrite("amsgrad", &AdamOptions::amsgrad)
      .def_readwrite("fused", &AdamOptions::fused);
  py::class_<SGDOptions>(m, "SGDOptions")
      .def(py::init<>())
      .def_readwrite("lr", &SGDOptions::lr)
      .def_readwrite("momentum", &SGDOptions::momentum)
      .def_readwrite("dampening", &SGDOptions::dampening)
      .def_readwrite("weight_decay", &SGDOptions::weight_decay)
      .def_readwrite("nesterov", &SGDOptions::nesterov)
      .def_readwrite("maximize", &SGDOptions::maximize);
  py::class_<LionOptions>(m, "LionOptions")
      .def(py::init<>())
      .def_readwrite("lr", &LionOptions::lr)
      .def_readwrite("beta1", &LionOptions::beta1)
      .def_readwrite("beta2", &LionOptions::beta2)
      .def_readwrite("weight_decay", &LionOptions::weight_decay)
      .def_readwrite("maximize", &LionOptions::maximize);
  py::class_<AdafactorOptions>(m, "AdafactorOptions")
      .def(py::init<>())
      .def_readwrite("lr", &AdafactorOptions::lr)
      .def_readwrite("beta2_decay", &AdafactorOptions::beta2_decay)
      .def_readwrite("eps1", &AdafactorOptions::eps1)
      .def_readwrite("eps2", &AdafactorOptions::eps2)
      .def_readwrite("d", &AdafactorOptions::d)
      .def_readwrite("weight_decay", &AdafactorOptions::weight_decay)
      .def_readwrite("maximize", &AdafactorOptions::maximize);
  py::class_<MuonOptions>(m, "MuonOptions")
      .def(py::init<>())
      .def_readwrite("lr", &MuonOptions::lr)
      .def_readwrite("weight_decay", &MuonOptions::weight_decay)
      .def_readwrite("momentum", &MuonOptions::momentum)
      .def_readwrite("nesterov", &MuonOptions::nesterov)
      .def_readwrite("ns_coefficients", &MuonOptions::ns_coefficients)
      .def_readwrite("eps", &MuonOptions::eps)
      .def_readwrite("ns_steps", &MuonOptions::ns_steps)
      .def_property(
          "match_rms_adamw",
          [](const MuonOptions& o) { return o.adjust == MuonOptions::Adjust::kMatchRmsAdamW; },
          [](MuonOptions& o, bool match) {
            o.adjust = match ? MuonOptions::Adjust::kMatchRmsAdamW : MuonOptions::Adjust::kOriginal;
          })
      .def_readwrite("maximize", &MuonOptions::maximize)
      .def_readwrite("muon", &MuonOptions::muon)
      .def_readwrite("adamw_beta1", &MuonOptions::adamw_beta1)
      .def_readwrite("adamw_beta2", &MuonOptions::adamw_beta2)
      .def_readwrite("adamw_eps", &MuonOptions::adamw_eps);
}

template <typename Rule, typename Options>
void BindRule(py::module_& m, const char* name) {
  py::class_<Rule, Optimizer>(m, name, EndsWithoutGil())
      .def(py::init([](std::shared_ptr<ShardedModel> model, std::vector<Options> groups,
                       const GroupOf& group_of) {
             // Collective. The lock is back before the instance is registered, which a call guard
             // would not see to.
             const py::gil_scoped_release no_gil;
             return std::make_unique<Rule>(std::move(model), std::move(groups), group_of);
           }),
           py::arg("model"), py::arg("groups"), py::arg("group_of"))
      .def(
          "step",
          [](Rule& o, const std::vector<Options>& groups) {
            o.groups() = groups;
            return o.Step();
          },
          py::arg("groups"), NoGil(),
          "False when a gradient was not finite and the step was skipped.");
}

}  // namespace

void BindOptimizers(py::module_& m) {
  BindOptions(m);
  py::class_<Optimizer>(m, "Optimizer", EndsWithoutGil())
      .def_property_readonly("skipped_steps", &Optimizer::skipped_steps)
      .def("use_stochastic_rounding", &Optimizer::UseStochasticRounding, py::arg("seed"))
      .def("group_norms", &Optimizer::GroupNorms, py::arg("norm_type"), NoGil())
      .def(
          "records",
          [](const Optimizer& o) {
            py::list out;
            for (const Optimizer::Record& r : o.Records()) {
              py::dict states;
              for (const auto& [name, t] : r.states) states[py::str(name)] = t;
              out.append(py::make_tuple(r.name, r.updates, states));
            }
            return out;
          },
          "[(parameter, updates so far, {state: DTensor})].")
      .def(
          "load",
          [](Optimizer& o, const py::list& records) {
            std::vector<Optimizer::Loaded> loaded;
            for (const py::handle& item : records) {
              const auto record = item.cast<py::tuple>();
              Optimizer::Loaded x{record[0].cast<std::string>(), record[1].cast<int64_t>(), {}};
              for (const auto& [name, t] : record[2].cast<py::dict>()) {
                x.parts.emplace_back(name.cast<std::string>(), t.cast<at::Tensor>());
              }
              loaded.push_back(std::move(x));
            }
            o.Load(loaded);
          },
          py::arg("records"), "Takes [(parameter, updates, {state: this rank's part})].");
  BindRule<AdamW, AdamOptions>(m, "AdamW");
  BindRule<Adam, AdamOptions>(m, "Adam");
  BindRule<AdamW8bit, AdamOptions>(m, "AdamW8bit");
  BindRule<SGD, SGDOptions>(m, "SGD");
  BindRule<Lion, LionOptions>(m, "Lion");
  BindRule<Adafactor, AdafactorOptions>(m, "Adafactor");
  BindRule<Muon, MuonOptions>(m, "Muon");
  py::class_<ExternalOptimizer, Optimizer>(m, "ExternalOptimizer", EndsWithoutGil())
      .def(py::init<std::shared_ptr<ShardedModel>>(), py::arg("model"))
      .def(
          "begin_step",
          [](ExternalOptimizer& o) {
            switch (o.BeginStep()) {
              case ExternalOptimizer::Outcome::kNothing:
                return "nothing";
              case ExternalOptimizer::Outcome::kSkipped:
                return "skipped";
              case ExternalOptimizer::Outcome::kReady:
                break;
            }
            return "ready";
          },
          NoGil())
      .def("parts",
           [](const ExternalOptimizer& o) {
             py::list out;
             for (const ExternalOptimizer::Part& p : o.Parts()) {
               out.append(py::make_tuple(p.name, p.param,
                                         p.grad.defined() ? py::cast(p.grad) : py::none()));
             }
             return out;
           })
      .def("end_step", &ExternalOptimizer::EndStep, NoGil())
      .def("as_state", &ExternalOptimizer::AsState, py::arg("name"), py::arg("part"));
}

}  // namespace lins
