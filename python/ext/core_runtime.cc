// ShardedModel.
#include <torch/csrc/Exceptions.h>

#include "dtensor/backward_error.h"
#include "dtensor_args.h"
#include "lins_policy/profile.h"
#include "runtime/autograd_hooks.h"
#include "runtime/sharded_model.h"

namespace lins {
namespace {

// What autograd's Python side turns into an exception of the type it names.
struct BackwardError : torch::PyTorchError {
  explicit BackwardError(const Error& e) : PyTorchError(e.what()), kind(e.kind()) {}
  PyObject* python_type() override {
    const char* name = kind == Error::Kind::kValue ? "LinsValueError" : "LinsRuntimeError";
    return py::object(py::module_::import("lins.errors").attr(name)).release().ptr();
  }
  Error::Kind kind;
};

std::vector<UnitSpec> ToUnits(const py::list& list) {
  std::vector<UnitSpec> out;
  for (const py::handle& item : list) {
    const auto unit = item.cast<py::tuple>();
    UnitSpec spec{unit[0].cast<std::string>(), {}, unit[2].cast<Policy>(), {}};
    if (const py::object fn = unit[3]; !fn.is_none()) {
      // Units are destroyed without the lock.
      const std::shared_ptr<py::object> held(new py::object(fn), [](py::object* o) {
        const py::gil_scoped_acquire gil;
        delete o;
      });
      spec.materialize = [held] {
        const py::gil_scoped_acquire gil;
        return (*held)().cast<std::vector<at::Tensor>>();
      };
    }
    for (const py::handle& p : unit[1].cast<py::list>()) {
      const auto pair = p.cast<py::tuple>();
      spec.params.push_back({pair[0].cast<std::string>(), pair[1].cast<at::Tensor>()});
    }
    out.push_back(std::move(spec));
  }
  return out;
}

py::object Optional(const std::optional<DTensor>& x) { return x ? py::cast(*x) : py::none(); }

void BindModel(py::module_& m) {
  py::class_<ShardedModel, std::shared_ptr<ShardedModel>>(m, "ShardedModel", EndsWithoutGil())
      .def(py::init([](const LiveMesh& mesh, const py::list& units, bool overlap, int prefetch,
                       bool check_init, const py::object& param_dtype, const py::object& grad_dtype,
                       const py::object& reduce_dtype, const std::optional<Profile>& profile,
                       bool overlap_update, const std::string& family, int64_t bucket_bytes,
                       int gradient_buckets, bool offload_optimizer, int64_t offload_chunk_bytes) {
             ShardOptions o;
             o.overlap = overlap;
             o.overlap_update = overlap_update;
             o.family = ValueOrThrow(ParseFamily(family));
             o.bucket_bytes = bucket_bytes;
             o.gradient_buckets = gradient_buckets;
             o.offload_optimizer = offload_optimizer;
             o.offload_chunk_bytes = offload_chunk_bytes;
             o.prefetch = prefetch;
             o.check_init = check_init;
             o.param_dtype = OptionalDtype(param_dtype);
             o.grad_dtype = OptionalDtype(grad_dtype);
             o.reduce_dtype = OptionalDtype(reduce_dtype);
             if (profile) o.cost_model = std::make_shared<Profile>(*profile);
             auto specs = ToUnits(units);
             py::gil_scoped_release no_gil;
             return ShardedModel::Create(mesh, std::move(specs), o);
           }),
           py::arg("mesh"), py::arg("units"), py::arg("overlap"), py::arg("prefetch"),
           py::arg("check_init"), py::arg("param_dtype"), py::arg("grad_dtype"),
           py::arg("reduce_dtype"), py::arg("profile"), py::arg("overlap_update"),
           py::arg("family"), py::arg("bucket_bytes"), py::arg("gradient_buckets"),
           py::arg("offload_optimizer"), py::arg("offload_chunk_bytes"))
      .def("pre_forward", &ShardedModel::PreForward, NoGil())
      .def("post_forward", &ShardedModel::PostForward, NoGil())
      .def("enter_unit", &ShardedModel::EnterUnit, NoGil())
      .def("leave_unit", &ShardedModel::LeaveUnit, NoGil())
      .def("begin_micro_batch", &ShardedModel::BeginMicroBatch, py::arg("index"), py::arg("count"),
           py::arg("divisor"), NoGil())
      .def("end_micro_batch", &ShardedModel::EndMicroBatch, NoGil())
      .def("zero_grad", &ShardedModel::ZeroGrad, NoGil())
      .def(
          "finish_updates",
          [](ShardedModel& x, std::optional<int> unit) {
            if (unit) {
              x.FinishUpdates(*unit);
            } else {
              x.FinishUpdates();
            }
            return x.Updating();
          },
          py::arg("unit") = py::none(), NoGil(),
          "Waits for updates under way, of one unit or all; returns whether others are.")
      .def_property_readonly("updating", &ShardedModel::Updating)
      .def("clip_grad_norm", &ShardedModel::ClipGradNorm, py::arg("max_norm"), py::arg("norm_type"),
           NoGil())
      .def("scale_gradients", &ShardedModel::ScaleGradients, py::arg("factor"), NoGil(),
           "Multiplies the gradients of the finished step; the optimizer does it in its own pass.")
      .def(
          "gradients_finite",
          [](ShardedModel& x) { return !x.GradientsReady() || x.SummarizeGradients().finite; },
          NoGil(), "Of all ranks. Collective.")
      .def("unshard", &ShardedModel::Unshard, py::arg("units"), NoGil())
      .def("reshard", &ShardedModel::Reshard, py::arg("units"), py::arg("writeback"), NoGil())
      .def_property_readonly("mesh", [](const ShardedModel& x) { return x.mesh(); })
      .def_property_readonly("gradients_ready", &ShardedModel::GradientsReady)
      .def(
          "states",
          [](ShardedModel& x, std::optional<int> unit) {
            std::vector<std::pair<std::string, ParamState>> states;
            {
              py::gil_scoped_release no_gil;
              states = x.States(unit);
            }
            py::list out;
            for (const auto& [name, s] : states) {
              py::dict d;
              d["param"] = s.param;
              d["grad"] = Optional(s.grad);
              d["master"] = Optional(s.master);
              for (const auto& [key, t] : s.optim) d[py::str(key)] = t;
              out.append(py::make_tuple(name, d));
            }
            return out;
          },
          py::arg("unit") = py::none(), "[(parameter, {state: DTensor})] of all units, or one.")
      .def(
          "plans",
          [](const ShardedModel& x) {
            py::list out;
            for (const auto& unit : x.units()) {
              for (const auto& b : unit->buffers) {
                out.append(py::make_tuple(b->unit(), b->plan(), b->trainable()));
              }
            }
            return out;
          },
          "[(unit, UnitPlan, trainable)] by flat buffer.")
      .def("memory", [](const ShardedModel& x) {
        const ShardedModel::Memory mem = x.MemoryUse();
        py::dict d;
        d["param"] = mem.param;
        d["grad"] = mem.grad;
        d["optim"] = mem.optim;
        d["optim_host"] = mem.optim_host;
        d["padding"] = mem.padding;
        d["buffers"] = mem.buffers.live_bytes;
        d["peak_buffers"] = mem.buffers.peak_bytes;
        d["live_leases"] = mem.buffers.live_leases;
        d["peak_leases"] = mem.buffers.peak_leases;
        d["pooled"] = mem.buffers.pooled_bytes;
        return d;
      });
}

}  // namespace

void BindRuntime(py::module_& m) {
  SetErrorTranslator([](const Error& e) { throw BackwardError(e); });
  BindModel(m);
}

}  // namespace lins
