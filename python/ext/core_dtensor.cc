// lins.DTensor.
#include "core.h"
#include "dtensor/dtensor.h"

namespace lins {
namespace {

Shape ToShape(const std::vector<int64_t>& v) { return Shape(v.begin(), v.end()); }

py::tuple ToTuple(const Shape& shape) {
  py::tuple out(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) out[i] = shape[i];
  return out;
}

// What names a layout in Python: the notation, placements one per axis, or a Layout.
using LayoutArg = std::variant<std::string, Layout, std::vector<Placement>>;

Layout Resolve(const LayoutArg& arg, const Shape& shape, const Mesh& mesh) {
  if (const auto* text = std::get_if<std::string>(&arg)) return ValueOrThrow(Layout::Parse(*text, shape, mesh));
  if (const auto* list = std::get_if<std::vector<Placement>>(&arg)) {
    return ValueOrThrow(Layout::FromPlacements(*list, shape, mesh));
  }
  return std::get<Layout>(arg);
}

DTensor FromLocal(const at::Tensor& local, const LiveMesh& mesh, const LayoutArg& layout,
                  const std::optional<std::vector<int64_t>>& shape) {
  if (const auto* whole = std::get_if<Layout>(&layout)) return DTensor::FromLocal(local, mesh, *whole);
  if (shape) return DTensor::FromLocal(local, mesh, Resolve(layout, ToShape(*shape), mesh));
  if (const auto* text = std::get_if<std::string>(&layout)) return DTensor::FromLocal(local, mesh, *text);
  // The notation of placements does not depend on sizes: any shape of this rank will do to print it.
  const Shape own(local.sizes().begin(), local.sizes().end());
  return DTensor::FromLocal(local, mesh, Resolve(layout, own, mesh).ToString());
}

}  // namespace

void BindDTensor(py::module_& m) {
  py::class_<DTensor>(m, "DTensor",
                      "This rank's part of a global tensor, and the layout that says which part.\n\n"
                      "Made by distribute_tensor or DTensor.from_local. Layouts are given in the notation "
                      "('S0(gpu)'), as a list of placements, or as a Layout.")
      .def_static("from_local", &FromLocal, py::arg("local"), py::arg("mesh"), py::arg("layout"),
                  py::arg("shape") = py::none(), NoGil(),
                  "Takes local as this rank's part. shape=None: the global shape is worked out from all ranks' "
                  "(collective), an error when they fit none.")
      .def(
          "redistribute",
          [](const DTensor& x, const LayoutArg& layout) {
            return x.Redistribute(Resolve(layout, x.shape(), x.mesh()));
          },
          py::arg("layout"), NoGil(), "The same values under another layout. Collective.")
      .def("full_tensor", &DTensor::FullTensor, NoGil(), "The whole tensor, on every rank. Collective.")
      .def("to_local", [](const DTensor& x) { return x.ToLocal(); }, "This rank's part, shared.")
      .def_property_readonly("layout", [](const DTensor& x) { return x.layout(); })
      .def_property_readonly("mesh", [](const DTensor& x) { return x.mesh(); })
      .def_property_readonly("shape", [](const DTensor& x) { return ToTuple(x.shape()); })
      .def_property_readonly("dtype", [](const DTensor& x) { return x.ToLocal().scalar_type(); })
      .def_property_readonly("placements", [](const DTensor& x) { return ValueOrThrow(x.layout().Placements()); })
      .def("__repr__", [](const DTensor& x) {
        return absl::StrCat("DTensor(", x.layout().ToString(), ", shape=", ShapeToString(x.shape()), ", dtype=",
                            c10::toString(x.ToLocal().scalar_type()), ", ", x.mesh().ToString(), ", rank ",
                            x.mesh().rank(), ")");
      });
  m.def(
      "distribute_tensor",
      [](const at::Tensor& tensor, const LiveMesh& mesh, const LayoutArg& layout, std::optional<int64_t> src_rank) {
        const Shape shape(tensor.sizes().begin(), tensor.sizes().end());
        return DTensor::Distribute(tensor, mesh, Resolve(layout, shape, mesh), src_rank);
      },
      py::arg("tensor"), py::arg("mesh"), py::arg("layout"), py::arg("src_rank") = py::none(), NoGil(),
      "Keeps this rank's part of a tensor that every rank passes; with src_rank that rank's values are broadcast.");
}

}  // namespace lins
