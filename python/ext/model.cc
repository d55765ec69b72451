// lins._planning: models and clusters, as planning sees them.
#include <filesystem>

#include "common.h"
#include "lins_policy/cluster.h"
#include "lins_policy/optimizer_bytes.h"
#include "plan_settings.h"
#include "profile.h"

namespace lins {
namespace {

// {"param": 2, "grad": 2, "master": 4, "moments": 8}, any of them left out; moments also by the
// name of an optimizer.
StateSizes SizesFrom(const py::object& given, const std::optional<std::string>& optimizer) {
  StateSizes sizes = TrainingShape().sizes;
  if (optimizer) sizes.moments = ValueOrThrow(MomentBytes(*optimizer));
  if (given.is_none()) return sizes;
  for (const auto& [key, value] : CastTo<std::map<std::string, int64_t>>("state_bytes", given)) {
    if (key == "param") {
      sizes.param = value;
    } else if (key == "grad") {
      sizes.grad = value;
    } else if (key == "master") {
      sizes.master = value;
    } else if (key == "moments") {
      if (optimizer) {
        throw Error("optimizer='" + *optimizer + "' says how many bytes moments take: leave " +
                    "'moments' out of state_bytes");
      }
      sizes.moments = value;
    } else {
      throw Error("unknown state '" + key +
                  "' in state_bytes: legal are 'param', 'grad', 'master' and 'moments'");
    }
  }
  return sizes;
}

void BindUnit(py::module_& m) {
  py::class_<Unit>(m, "Unit",
                   R"(Parameters that are gathered and reduced together.

parameters counts elements, frozen ones included; repeat says how many units are alike;
forward_flops, activation_bytes (kept from a forward to its backward) and boundary_bytes (kept in
their place under recomputation) are of one micro-batch; forward_seconds and backward_seconds, where
measured, stand before the flops.)")
      .def(py::init([](std::string name, int64_t parameters, int64_t repeat, int64_t frozen,
                       double forward_flops, int64_t activation_bytes, int64_t boundary_bytes,
                       double forward_seconds, double backward_seconds) {
             return Unit{std::move(name), parameters,      repeat,
                         frozen,          forward_flops,   activation_bytes,
                         boundary_bytes,  forward_seconds, backward_seconds};
           }),
           py::arg("name"), py::arg("parameters"), py::arg("repeat") = 1, py::arg("frozen") = 0,
           py::arg("forward_flops") = 0.0, py::arg("activation_bytes") = 0,
           py::arg("boundary_bytes") = 0, py::arg("forward_seconds") = 0.0,
           py::arg("backward_seconds") = 0.0)
      .def_readonly("name", &Unit::name)
      .def_readonly("parameters", &Unit::parameters)
      .def_readonly("repeat", &Unit::repeat)
      .def_readonly("frozen", &Unit::frozen)
      .def_readonly("forward_flops", &Unit::forward_flops)
      .def_readonly("activation_bytes", &Unit::activation_bytes)
      .def_readonly("boundary_bytes", &Unit::boundary_bytes)
      .def_readonly("forward_seconds", &Unit::forward_seconds)
      .def_readonly("backward_seconds", &Unit::backward_seconds)
      .def(py::self == py::self)
      .def("__repr__", [](const Unit& u) {
        return absl::StrCat("Unit('", u.name, "', parameters=", u.parameters, ", repeat=", u.repeat,
                            ")");
      });
}

void BindModelSpec(py::module_& m) {
  py::class_<ModelSpec>(m, "ModelSpec", "A model's units, as planning sees them.")
      .def(
          py::init([](std::vector<Unit> units, int64_t seq_len, int64_t micro_batch,
                      std::string name, const std::string& recompute, const py::object& state_bytes,
                      int64_t logits_bytes, const std::optional<std::string>& optimizer) {
            ModelSpec spec{std::move(name), std::move(units), {}, logits_bytes};
            spec.training = {seq_len, micro_batch, ValueOrThrow(ParseRecompute(recompute)),
                             SizesFrom(state_bytes, optimizer)};
            ThrowIfError(spec.Validate());
            return spec;
          }),
          py::arg("units"), py::arg("seq_len") = 4096, py::arg("micro_batch") = 1,
          py::arg("name") = "model", py::arg("recompute") = "none",
          py::arg("state_bytes") = py::none(), py::arg("logits_bytes") = 0,
          py::arg("optimizer") = py::none())
      .def_static(
          "llama",
          [](const std::string& size, int64_t seq_len, int64_t micro_batch,
             std::optional<int64_t> hidden, std::optional<int64_t> layers,
             std::optional<int64_t> ffn, std::optional<int64_t> vocabulary, int64_t heads,
             int64_t kv_heads, bool tied, const std::string& recompute,
             const py::object& state_bytes, const std::optional<std::string>& optimizer) {
            const TrainingShape training{seq_len, micro_batch,
                                         ValueOrThrow(ParseRecompute(recompute)),
                                         SizesFrom(state_bytes, optimizer)};
            if (!hidden && !layers && !ffn) {
              if (vocabulary || heads || kv_heads || tied) {
                throw Error(
                    "vocabulary, heads, kv_heads and tied go with hidden, layers and ffn, not with "
                    "a named size");
              }
              return ValueOrThrow(ModelSpec::Llama(size, training));
            }
            if (!hidden || !layers || !ffn) throw Error("give all of hidden, layers and ffn");
            const LlamaShape shape{*hidden, *layers,  *ffn, vocabulary.value_or(32000),
                                   heads,   kv_heads, tied};
            return ValueOrThrow(ModelSpec::Llama(size, shape, training));
          },
          py::arg("size"), py::arg("seq_len") = 4096, py::arg("micro_batch") = 1,
          py::arg("hidden") = py::none(), py::arg("layers") = py::none(),
          py::arg("ffn") = py::none(), py::arg("vocabulary") = py::none(), py::arg("heads") = 0,
          py::arg("kv_heads") = 0, py::arg("tied") = false, py::arg("recompute") = "none",
          py::arg("state_bytes") = py::none(), py::arg("optimizer") = py::none(),
          R"('7B', '13B' or '30B' of the paper; or any name with hidden=, layers= and ffn=.

optimizer: 'adamw8bit', 'lion', ... in place of state_bytes' "moments".)")
      .def_readonly("name", &ModelSpec::name)
      .def_readonly("units", &ModelSpec::units)
      .def_readonly("logits_bytes", &ModelSpec::logits_bytes)
      .def_property_readonly("parameters", &ModelSpec::parameters)
      .def_property_readonly("seq_len", [](const ModelSpec& s) { return s.training.seq_len; })
      .def_property_readonly("micro_batch",
                             [](const ModelSpec& s) { return s.training.micro_batch; })
      .def_property_readonly(
          "recompute", [](const ModelSpec& s) { return Str(RecomputeName(s.training.recompute)); })
      .def(
          "with_micro_batch",
          [](const ModelSpec& s, int64_t n) { return ValueOrThrow(s.WithMicroBatch(n)); },
          py::arg("micro_batch"), "The same model with another number of sequences at once.")
      .def("__repr__", [](const ModelSpec& s) {
        return absl::StrCat("ModelSpec('", s.name, "', ", s.units.size(), " units, ",
                            s.parameters(), " parameters)");
      });
}

void BindCluster(py::module_& m) {
  py::class_<Cluster>(m, "Cluster",
                      R"(Nodes of GPUs, their memory, and the profile of their links.

profile is a Profile, a shipped name or a path. quota_bytes is what a scheduler lets the job use of a
GPU. flops_per_second is that of one GPU in training; 0 takes the profile's, or an A100's.
host_bandwidth is that between a GPU and its host's memory, bytes per second of both directions
together; 0 assumes 25e9 (PCIe generation 4). memory_bandwidth is that of a GPU's own memory as an
optimizer uses it (1.6e12 on an A100); 0 leaves the optimizer's seconds out of plans.
tensor_parallel and pipeline_parallel divide the model and shrink the data-parallel mesh.)")
      .def(py::init([](int64_t nodes, int64_t gpus_per_node, int64_t memory_bytes,
                       const py::object& profile, std::optional<int64_t> quota_bytes,
                       double flops_per_second, int64_t tensor_parallel, int64_t pipeline_parallel,
                       double host_bandwidth, double memory_bandwidth) {
             Cluster c{nodes,
                       gpus_per_node,
                       memory_bytes,
                       quota_bytes,
                       std::make_shared<Profile>(ToProfile(profile)),
                       flops_per_second,
                       tensor_parallel,
                       pipeline_parallel,
                       host_bandwidth,
                       memory_bandwidth};
             ThrowIfError(c.Validate());
             return c;
           }),
           py::arg("nodes"), py::arg("gpus_per_node"),
           py::arg("memory_bytes") = Cluster().memory_bytes, py::arg("profile") = "a800",
           py::arg("quota_bytes") = py::none(), py::arg("flops_per_second") = 0.0,
           py::arg("tensor_parallel") = 1, py::arg("pipeline_parallel") = 1,
           py::arg("host_bandwidth") = 0.0, py::arg("memory_bandwidth") = 0.0)
      .def_readonly("nodes", &Cluster::nodes)
      .def_readonly("gpus_per_node", &Cluster::gpus_per_node)
      .def_readonly("memory_bytes", &Cluster::memory_bytes)
      .def_readonly("quota_bytes", &Cluster::quota_bytes)
      .def_readonly("tensor_parallel", &Cluster::tensor_parallel)
      .def_readonly("pipeline_parallel", &Cluster::pipeline_parallel)
      .def_property_readonly("flops_per_second", &Cluster::flops)
      .def_property_readonly("host_bandwidth", &Cluster::host_bytes_per_second)
      .def_readonly("memory_bandwidth", &Cluster::memory_bandwidth)
      .def_property_readonly("profile", [](const Cluster& c) { return *c.profile; })
      .def("__repr__", [](const Cluster& c) {
        return absl::StrCat("Cluster(nodes=", c.nodes, ", gpus_per_node=", c.gpus_per_node,
                            ", memory_bytes=", c.memory_bytes, ", profile='", c.profile->name(),
                            "')");
      });
}

}  // namespace

void BindModel(py::module_& m) {
  m.def(
      "moment_bytes", [](const std::string& name) { return ValueOrThrow(MomentBytes(name)); },
      py::arg("optimizer"), "Bytes per parameter that an optimizer keeps beside masters.");
  m.def(
      "optimizer_bytes",
      [] {
        py::dict out;
        for (const auto& [name, bytes] : OptimizerBytes()) out[Str(name).c_str()] = bytes;
        return out;
      },
      "{name: those bytes} of every optimizer that planning knows.");
  BindUnit(m);
  BindModelSpec(m);
  BindCluster(m);
}

}  // namespace lins
