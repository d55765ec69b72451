// lins.zeros, ones, full, empty, rand, randn.
#include "dtensor/factories.h"
#include "dtensor_args.h"

namespace lins {

std::optional<at::ScalarType> OptionalDtype(const py::object& dtype) {
  if (dtype.is_none()) return std::nullopt;
  return dtype.cast<at::ScalarType>();
}

std::optional<c10::Scalar> ToScalar(const py::handle& number) {
  PyObject* p = number.ptr();
  if (PyBool_Check(p)) return c10::Scalar(p == Py_True);
  if (PyLong_Check(p)) return c10::Scalar(number.cast<int64_t>());
  if (PyFloat_Check(p)) return c10::Scalar(PyFloat_AS_DOUBLE(p));
  if (!PyComplex_Check(p)) return std::nullopt;
  return c10::Scalar(c10::complex<double>(PyComplex_RealAsDouble(p), PyComplex_ImagAsDouble(p)));
}

namespace {

using Sizes = std::variant<int64_t, std::vector<int64_t>>;

// Calls make(layout, mesh, dtype) without Python's lock.
template <typename Fn>
DTensor Call(const Sizes& sizes, const LiveMesh& mesh, const LayoutArg& placements,
             const py::object& dtype, const Fn& make) {
  const auto* one = std::get_if<int64_t>(&sizes);
  const Shape shape = one ? Shape{*one} : ShapeOf(std::get<std::vector<int64_t>>(sizes));
  const auto type = OptionalDtype(dtype);
  py::gil_scoped_release no_gil;
  return make(Resolve(placements, shape, mesh), mesh, type);
}

constexpr const char* kDoc =
    "A new distributed tensor whose values do not depend on its layout.\n\n"
    "shape: of the whole tensor. placements: notation, list or Layout. dtype: torch's default "
    "unless given. "
    "Nothing is communicated. LinsError when the layout does not fit the shape or the mesh.";
constexpr const char* kRandomDoc =
    "Random numbers by place: element i is a function of (seed, i), whatever the layout.\n\n"
    "rand is uniform in [0, 1), randn normal with mean 0 and deviation 1. The same seed gives the "
    "same numbers: "
    "pass another one for each tensor. dtype: a floating-point one, torch's default unless given. "
    "Nothing is communicated.";

}  // namespace

void BindFactories(py::module_& m) {
  const auto plain = [&m](const char* name,
                          DTensor (*make)(const Layout&, const LiveMesh&, OptionalType)) {
    m.def(
        name,
        [make](const Sizes& shape, const LiveMesh& mesh, const LayoutArg& placements,
               const py::object& dtype) { return Call(shape, mesh, placements, dtype, make); },
        py::arg("shape"), py::arg("mesh"), py::arg("placements") = "R",
        py::arg("dtype") = py::none(), kDoc);
  };
  plain("zeros", &Zeros);
  plain("ones", &Ones);
  plain("empty", &Empty);
  m.def(
      "full",
      [](const Sizes& shape, const py::object& number, const LiveMesh& mesh,
         const LayoutArg& placements, const py::object& dtype) {
        const auto value = ToScalar(number);
        if (!value)
          throw Error(absl::StrCat("full takes a number, not ", std::string(py::repr(number))));
        return Call(shape, mesh, placements, dtype,
                    [&](const Layout& l, const LiveMesh& on, OptionalType type) {
                      return Full(l, on, *value, type);
                    });
      },
      py::arg("shape"), py::arg("value"), py::arg("mesh"), py::arg("placements") = "R",
      py::arg("dtype") = py::none(), kDoc);
  const auto random = [&m](const char* name, auto make) {
    m.def(
        name,
        [make](const Sizes& shape, const LiveMesh& mesh, const LayoutArg& placements, uint64_t seed,
               const py::object& dtype) {
          return Call(shape, mesh, placements, dtype,
                      [&](const Layout& l, const LiveMesh& on, OptionalType type) {
                        return make(l, on, seed, type);
                      });
        },
        py::arg("shape"), py::arg("mesh"), py::arg("placements") = "R", py::arg("seed") = 0,
        py::arg("dtype") = py::none(), kRandomDoc);
  };
  random("rand", &Rand);
  random("randn", &RandN);
}

}  // namespace lins
