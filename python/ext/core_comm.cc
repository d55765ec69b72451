// Worlds, live meshes, tracing and injection.
#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/trace.h"
#include "comm/world.h"
#include "core.h"
#include "dtensor/live_mesh.h"

namespace lins {
namespace {

// A world joins threads and leaves groups when it goes: never with Python's lock in hand.
struct WorldRelease {
  void operator()(std::shared_ptr<World>* world) const {
    py::gil_scoped_release no_gil;
    delete world;
  }
};
using WorldBox = std::unique_ptr<std::shared_ptr<World>, WorldRelease>;

// Python's handle on a world.
struct PyWorld {
  explicit PyWorld(std::shared_ptr<World> w) : box(new std::shared_ptr<World>(std::move(w))) {}
  World& get() const { return **box; }
  WorldBox box;
};

// The collectives of one group, as they are under distributed tensors.
struct PyCommunicator {
  LiveMesh mesh;
  Communicator* comm;
};

py::object Record(const py::object& type, const TraceRecord& r) {
  return type(r.op, r.role, r.unit, r.axes, r.group, r.bytes, r.recv_bytes, r.start, r.end,
              r.sequence, r.rank);
}

// Calls a Python function that returns a string, from any thread.
std::function<std::string()> PythonText(py::function fn) {
  const auto release = [](py::function* f) {
    py::gil_scoped_acquire gil;
    delete f;
  };
  const std::shared_ptr<py::function> shared(new py::function(std::move(fn)), release);
  return [shared] {
    py::gil_scoped_acquire gil;
    return (*shared)().cast<std::string>();
  };
}

}  // namespace

void BindComm(py::module_& m) {
  py::class_<PyWorld>(m, "World", "All ranks of a job as one of them sees it.")
      .def_property_readonly("rank", [](const PyWorld& w) { return w.get().rank(); })
      .def_property_readonly("size", [](const PyWorld& w) { return w.get().size(); })
      .def_property_readonly("backend", [](const PyWorld& w) { return w.get().backend(); })
      .def_property_readonly("timeout", [](const PyWorld& w) { return w.get().timeout(); })
      .def_property_readonly(
          "device", [](const PyWorld& w) { return c10::DeviceTypeName(w.get().device(), true); },
          "The kind of device that tensors must be on, such as \"cpu\".")
      .def(
          "check_agreement",
          [](const PyWorld& w, const std::string& what, const std::string& value) {
            w.get().CheckAgreement(what, value);
          },
          py::arg("what"), py::arg("value"), NoGil(),
          "Raises on every rank unless all pass the same value. Collective.")
      .def(
          "abort", [](const PyWorld& w, const std::string& reason) { w.get().Abort(reason); },
          py::arg("reason"), NoGil())
      .def(
          "shutdown", [](const PyWorld& w) { w.get().Shutdown(); }, NoGil());

  m.def("single_world", [] { return PyWorld(World::Single()); });
  m.def(
      "thread_worlds",
      [](int64_t size, double timeout, const std::string& device) {
        py::list out;
        const c10::DeviceType type = c10::Device(device).type();
        for (auto& w : World::Threads(size, timeout, type)) out.append(PyWorld(std::move(w)));
        return out;
      },
      py::arg("size"), py::arg("timeout") = 60.0, py::arg("device") = "cpu");
  const auto over_store = [&m](const char* name, auto make) {
    m.def(
        name,
        [make](const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
               double timeout) {
          py::gil_scoped_release no_gil;
          return PyWorld(make(store, rank, size, timeout));
        },
        py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"));
  };
  over_store("gloo_world", World::Gloo);
  over_store("nccl_world", [](const auto& store, auto rank, auto size, auto timeout) {
    return World::Nccl(store, rank, size, timeout);
  });

  py::class_<LiveMesh, Mesh>(m, "LiveMesh", py::dynamic_attr(),
                             "A mesh with processes behind it. Made by init_mesh.")
      .def(py::init(
               [](const PyWorld& world, std::vector<int64_t> shape, std::vector<std::string> axes) {
                 py::gil_scoped_release no_gil;
                 return LiveMesh::Create(*world.box, std::move(shape), std::move(axes));
               }),
           py::arg("world"), py::arg("shape"), py::arg("axes"))
      .def_property_readonly("rank", &LiveMesh::rank, "This process' rank in the mesh.")
      .def_property_readonly("world", [](const LiveMesh& x) { return PyWorld(x.world_ptr()); })
      .def_property_readonly("backend", [](const LiveMesh& x) { return x.world().backend(); })
      .def(
          "communicator",
          [](const LiveMesh& x, const std::string& axes) {
            return PyCommunicator{x, &x.Comm(ValueOrThrow(x.ParseAxes(axes)), Role::kOther)};
          },
          py::arg("axes"), NoGil(),
          "The bare collectives of this rank's group over axes, on tensors: what benchmarks "
          "compare "
          "a redistribution with. Collective.");

  py::class_<PyCommunicator>(m, "Communicator", "The bare collectives of one group of ranks.")
      .def_property_readonly("size", [](const PyCommunicator& c) { return c.comm->size(); })
      .def(
          "all_gather",
          [](const PyCommunicator& c, const at::Tensor& out, const at::Tensor& input) {
            c.comm->AllGather(out, input).Wait();
          },
          py::arg("out"), py::arg("input"), NoGil(),
          "out becomes the concatenation of every rank's input, of equal sizes. Blocks.")
      .def(
          "barrier", [](const PyCommunicator& c) { c.comm->Barrier().Wait(); }, NoGil(),
          "Returns once every rank has called it.");

  // The context of one rank: entered by the thread that plays it.
  py::class_<RankContext, std::shared_ptr<RankContext>>(m, "RankContext")
      .def_static("current", &RankContext::Current)
      .def("quiesce", &RankContext::Quiesce, NoGil(),
           "Waits until what was handed over to this rank's streams has run.")
      .def("start_verifying", &RankContext::StartVerifying)
      .def("stop_verifying", &RankContext::StopVerifying)
      .def("finish_verifying", &RankContext::FinishVerifying, NoGil())
      .def("start_trace", &RankContext::StartTrace)
      .def("stop_trace", &RankContext::StopTrace, py::arg("id"))
      .def(
          "trace",
          [](const RankContext& c, int id, const py::object& record_type) {
            py::list out;
            for (const TraceRecord& r : c.Trace(id)) out.append(Record(record_type, r));
            return out;
          },
          py::arg("id"), py::arg("record_type"))
      .def(
          "add_delay",
          [](RankContext& c, const std::string& op, const std::string& unit,
             const std::string& role, double seconds) {
            return c.AddDelay({op, unit, role}, seconds);
          },
          py::arg("op"), py::arg("unit"), py::arg("role"), py::arg("seconds"))
      .def(
          "add_failure",
          [](RankContext& c, const std::string& op, const std::string& unit,
             const std::string& role, const std::string& message) {
            return c.AddFailure({op, unit, role}, message);
          },
          py::arg("op"), py::arg("unit"), py::arg("role"), py::arg("message"))
      .def(
          "forbid",
          [](RankContext& c, py::function where) { return c.Forbid(PythonText(std::move(where))); },
          py::arg("where"), "Collectives raise, with where()'s text, until remove(id).")
      .def("remove", &RankContext::Remove, py::arg("id"));
  py::class_<RankContext::Scope>(m, "RankScope",
                                 "Makes a world's context the calling thread's own.")
      .def(py::init([](const PyWorld& w) {
        return std::make_unique<RankContext::Scope>(w.get().context_ptr());
      }));
}

}  // namespace lins
