// lins._planning: meshes, layouts and redistribution plans, without torch.
#include <memory>
#include <optional>

#include "absl/hash/hash.h"
#include "common.h"
#include "placement/redistribution.h"
#include "profile.h"

namespace lins {

void BindPolicy(py::module_& m);
void BindModel(py::module_& m);
void BindSolving(py::module_& m);
void BindProfile(py::module_& m);

namespace {

Shape ToShape(const std::vector<int64_t>& shape) { return Shape(shape.begin(), shape.end()); }

int64_t CheckRank(const Mesh& mesh, int64_t rank) {
  if (rank < 0 || rank >= mesh.size()) {
    throw Error(absl::StrCat("rank ", rank, " is outside ", mesh.ToString(), ": legal are 0 to ",
                             mesh.size() - 1));
  }
  return rank;
}

void BindMesh(py::module_& m) {
  py::class_<Mesh>(m, "Mesh", py::dynamic_attr(),
                   "Named axes over ranks, slowest link first: rank = node * gpus + gpu.")
      .def(py::init([](std::vector<int64_t> shape, std::vector<std::string> axes) {
             return ValueOrThrow(Mesh::Create(std::move(shape), std::move(axes)));
           }),
           py::arg("shape"), py::arg("axes"))
      .def_property_readonly("shape", [](const Mesh& x) { return ToTuple(x.shape()); })
      .def_property_readonly("axes", [](const Mesh& x) { return ToTuple(x.axes()); })
      .def_property_readonly("size", &Mesh::size)
      .def(
          "coordinate",
          [](const Mesh& x, int64_t rank) { return ToTuple(x.Coordinate(CheckRank(x, rank))); },
          py::arg("rank"), "Coordinates of a rank, in the order of axes.")
      .def(
          "groups",
          [](const Mesh& x, const std::string& axes) {
            return x.Groups(ValueOrThrow(x.ParseAxes(axes)));
          },
          py::arg("axes"),
          "Lists of ranks that differ in these sub-axes only, in the order of the sub-axes: "
          "groups('gpu:4').")
      .def(py::self == py::self)
      .def("__hash__", [](const Mesh& x) { return absl::Hash<Mesh>()(x); })
      .def("__repr__", &Mesh::ToString)
      .def(py::pickle([](const Mesh& x) { return py::make_tuple(x.shape(), x.axes()); },
                      [](const py::tuple& t) {
                        return ValueOrThrow(Mesh::Create(t[0].cast<std::vector<int64_t>>(),
                                                         t[1].cast<std::vector<std::string>>()));
                      }));
}

void BindPlacements(py::module_& m) {
  py::class_<Shard>(m, "Shard", "One mesh axis splits tensor dimension dim.")
      .def(py::init([](int dim) { return Shard{dim}; }), py::arg("dim"))
      .def_readonly("dim", &Shard::dim)
      .def(py::self == py::self)
      .def("__hash__", [](const Shard& s) { return py::hash(py::make_tuple("Shard", s.dim)); })
      .def("__repr__", [](const Shard& s) { return ToString(Placement(s)); });
  py::class_<Replicate>(m, "Replicate", "Every rank of the axis holds the same.")
      .def(py::init<>())
      .def(py::self == py::self)
      .def("__hash__", [](const Replicate&) { return py::hash(py::str("Replicate")); })
      .def("__repr__", [](const Replicate& r) { return ToString(Placement(r)); });
  py::class_<Partial>(m, "Partial", "The axis' values are still to be reduced with op.")
      .def(py::init([](const std::string& name) {
             const auto op = ParseReduceOp(name);
             if (!op) {
               throw Error("unknown reduction '" + name +
                           "': sum, avg, min, max, product, band, bor or bxor");
             }
             return Partial{*op};
           }),
           py::arg("op") = "sum")
      .def_property_readonly("op", [](const Partial& p) { return Str(ReduceOpName(p.op)); })
      .def(py::self == py::self)
      .def("__hash__",
           [](const Partial& p) {
             return py::hash(py::make_tuple("Partial", Str(ReduceOpName(p.op))));
           })
      .def("__repr__", [](const Partial& p) { return ToString(Placement(p)); });
}

void BindLayout(py::module_& m) {
  py::class_<Layout>(
      m, "Layout",
      "Which elements of a global tensor each rank of a mesh holds.\n\n"
      "Layout('S0(gpu,node)', shape=(10, 4), mesh=mesh), or a list of placements, one per "
      "mesh axis, in place of the string.")
      .def(py::init([](const std::string& notation, const std::vector<int64_t>& shape,
                       const Mesh& mesh) {
             return ValueOrThrow(Layout::Parse(notation, ToShape(shape), mesh));
           }),
           py::arg("notation"), py::arg("shape"), py::arg("mesh"))
      .def(py::init([](const std::vector<Placement>& placements, const std::vector<int64_t>& shape,
                       const Mesh& mesh) {
             return ValueOrThrow(Layout::FromPlacements(placements, ToShape(shape), mesh));
           }),
           py::arg("placements"), py::arg("shape"), py::arg("mesh"))
      .def_property_readonly("shape", [](const Layout& l) { return ToTuple(l.shape()); })
      .def_property_readonly("mesh", [](const Layout& l) { return l.mesh(); })
      .def_property_readonly("numel", &Layout::numel)
      .def_property_readonly("placements",
                             [](const Layout& l) { return ValueOrThrow(l.Placements()); })
      .def(
          "ranges",
          [](const Layout& l, int64_t rank) {
            const Ranges r = l.RangesOf(CheckRank(l.mesh(), rank));
            return std::vector<Range>(r.begin(), r.end());
          },
          py::arg("rank"),
          "[(start, stop), ...] per dimension; for F and O the one range in the flattened "
          "elements.")
      .def(
          "local_shape",
          [](const Layout& l, int64_t rank) {
            return ToTuple(l.LocalShape(CheckRank(l.mesh(), rank)));
          },
          py::arg("rank"))
      .def(py::self == py::self)
      .def("__hash__", [](const Layout& l) { return absl::Hash<Layout>()(l); })
      .def("__str__", &Layout::ToString)
      .def("__repr__",
           [](const Layout& l) {
             return absl::StrCat("Layout('", l.ToString(), "', shape=", ShapeToString(l.shape()),
                                 ", mesh=", l.mesh().ToString(), ")");
           })
      .def(py::pickle(
          [](const Layout& l) {
            return py::make_tuple(l.ToString(), ToTuple(l.shape()), l.mesh());
          },
          [](const py::tuple& t) {
            return ValueOrThrow(Layout::Parse(t[0].cast<std::string>(),
                                              ToShape(t[1].cast<std::vector<int64_t>>()),
                                              t[2].cast<Mesh>()));
          }));
}

// Prices a collective with a Python object's time(op, nbytes, gpus=, nodes=).
class PythonCostModel : public CostModel {
 public:
  explicit PythonCostModel(py::object profile) : profile_(std::move(profile)) {}
  double Seconds(StepKind kind, int64_t bytes, int64_t gpus, int64_t nodes) const override {
    const bool pairwise = kind == StepKind::kPermute || kind == StepKind::kExchange;
    const std::string op = pairwise ? "all_to_all" : Str(StepKindName(kind));
    return profile_.attr("time")(op, bytes, py::arg("gpus") = gpus, py::arg("nodes") = nodes)
        .cast<double>();
  }

 private:
  py::object profile_;
};

// The cost model that a profile argument means, or null without one.
std::unique_ptr<CostModel> ToCostModel(py::object profile) {
  if (profile.is_none()) return nullptr;
  const bool named = py::isinstance<Profile>(profile) || !py::hasattr(profile, "time");
  if (named) return std::make_unique<Profile>(ToProfile(profile));
  return std::make_unique<PythonCostModel>(std::move(profile));
}

void BindPlans(py::module_& m) {
  py::class_<Step>(m, "Step", "One step of a redistribution plan.")
      .def_property_readonly("kind", [](const Step& s) { return Str(StepKindName(s.kind)); })
      .def_property_readonly("axes",
                             [](const Step& s) { return s.before.mesh().AxesToString(s.axes); })
      .def_readonly("before", &Step::before)
      .def_readonly("after", &Step::after)
      .def_readonly("bytes", &Step::bytes)
      .def_readonly("recv_bytes", &Step::recv_bytes)
      .def_readonly("peak_bytes", &Step::peak_bytes)
      .def_readonly("seconds", &Step::seconds)
      .def("__repr__", [](const Step& s) {
        return absl::StrCat(Str(StepKindName(s.kind)), "(", s.before.mesh().AxesToString(s.axes),
                            ") ", s.before.ToString(), " -> ", s.after.ToString());
      });
  py::class_<RedistributionPlan>(m, "RedistributionPlan",
                                 "The cheapest steps from src to dst; prints as a table.")
      .def_readonly("src", &RedistributionPlan::src)
      .def_readonly("dst", &RedistributionPlan::dst)
      .def_readonly("steps", &RedistributionPlan::steps)
      .def_readonly("recv_bytes", &RedistributionPlan::recv_bytes)
      .def_readonly("peak_bytes", &RedistributionPlan::peak_bytes,
                    "Input and output of one step alive at once: the largest over the steps.")
      .def_property_readonly(
          "live_bytes",
          [](const RedistributionPlan& p) {
            int64_t most = 0;
            for (int64_t r = 0; r < p.src.mesh().size(); ++r)
              most = std::max(most, LiveBytes(p, r));
            return most;
          },
          "All that the worst rank has alive at once while the plan runs: the source, a step's "
          "input and output, and what is packed for its collective.")
      .def_readonly("lower_bound_bytes", &RedistributionPlan::lower_bound_bytes)
      .def_readonly("seconds", &RedistributionPlan::seconds)
      .def("__repr__", &RedistributionPlan::ToString);
  m.def(
      "plan_redistribution",
      [](const Layout& src, const Layout& dst, int64_t itemsize, py::object priced_by,
         std::optional<int64_t> max_peak_bytes) {
        PlanOptions options;
        options.max_peak_bytes = max_peak_bytes;
        const std::unique_ptr<CostModel> model = ToCostModel(std::move(priced_by));
        options.cost_model = model.get();
        if (const auto* profile = dynamic_cast<const Profile*>(model.get())) {
          const int64_t gpus = src.mesh().shape().back();
          ThrowIfError(profile->CanPrice(gpus, src.mesh().size() / gpus));
        }
        return ValueOrThrow(PlanRedistribution(src, dst, itemsize, options));
      },
      py::arg("src"), py::arg("dst"), py::arg("itemsize") = 4, py::arg("profile") = py::none(),
      py::arg("max_peak_bytes") = py::none(),
      "The cheapest sequence of steps from one layout to another of the same shape and mesh.\n\n"
      "Without a profile the fewest bytes received by the worst rank; with one (a Profile, a\n"
      "shipped name, a path, or any object with time(op, nbytes, gpus=, nodes=) in seconds) the\n"
      "least time. Bytes are per rank.");
}

}  // namespace
}  // namespace lins

PYBIND11_MODULE(_planning, m) {
  m.doc() = "Meshes, layouts and redistribution plans of lins. No torch.";
  lins::RegisterErrors();
  lins::BindMesh(m);
  lins::BindPlacements(m);
  lins::BindLayout(m);
  lins::BindPlans(m);
  lins::BindPolicy(m);
  lins::BindProfile(m);
  lins::BindModel(m);
  lins::BindSolving(m);
}
