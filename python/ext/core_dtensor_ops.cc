// Arithmetic of lins.DTensor.
#include <torch/csrc/autograd/python_variable.h>

#include "dtensor/ops.h"
#include "dtensor_args.h"

namespace lins {
namespace {

using DimsArg = std::optional<std::variant<int64_t, std::vector<int64_t>>>;

Dims ToDims(const DimsArg& dims) {
  if (!dims) return {};
  if (const auto* one = std::get_if<int64_t>(&*dims)) return {*one};
  return std::get<std::vector<int64_t>>(*dims);
}

// A DTensor or a number; nothing for what Python should try otherwise.
std::optional<Operand> ToOperand(const py::object& other) {
  if (py::isinstance<DTensor>(other)) return other.cast<DTensor>();
  if (THPVariable_Check(other.ptr())) {
    throw Error(
        "a plain tensor does not say which ranks hold what: make it a DTensor first, "
        "by lins.distribute_tensor(t, x.mesh, 'R') if every rank has all of it, "
        "or lins.DTensor.from_local");
  }
  if (const auto number = ToScalar(other)) return *number;
  return std::nullopt;
}

py::object NotImplemented() { return py::reinterpret_borrow<py::object>(Py_NotImplemented); }

void BindBinary(py::class_<DTensor>& cls, const char* method, const char* reflected, BinaryOp op) {
  const auto run = [op](const py::object& self, const py::object& other, bool swap) -> py::object {
    const auto b = ToOperand(other);
    if (!b) return NotImplemented();
    const Operand a = self.cast<DTensor>();
    std::optional<DTensor> out;
    {
      py::gil_scoped_release no_gil;
      out = swap ? Binary(op, *b, a) : Binary(op, a, *b);
    }
    return py::cast(*std::move(out));
  };
  cls.def(
      method, [run](const py::object& a, const py::object& b) { return run(a, b, false); },
      py::is_operator());
  if (reflected) {
    cls.def(
        reflected, [run](const py::object& a, const py::object& b) { return run(a, b, true); },
        py::is_operator());
  }
}

void BindInPlace(py::class_<DTensor>& cls, const char* op_method, const char* method, BinaryOp op) {
  const auto run = [op](const py::object& self, const py::object& other) -> py::object {
    const auto b = ToOperand(other);
    if (!b) return NotImplemented();
    const DTensor a = self.cast<DTensor>();
    {
      py::gil_scoped_release no_gil;
      BinaryInPlace(op, a, *b);
    }
    return self;
  };
  cls.def(op_method, run, py::is_operator());
  cls.def(method, run, py::arg("other"),
          "In this tensor's own memory; returns it. LinsError where layout or dtype would not "
          "survive.");
}

IndexItem ToIndexItem(const py::handle& item) {
  if (item.is_none()) return IndexNone();
  if (item.ptr() == Py_Ellipsis) return IndexEllipsis();
  if (PySlice_Check(item.ptr())) {
    const auto bound = [&item](const char* name) -> std::optional<int64_t> {
      const py::object b = item.attr(name);
      return b.is_none() ? std::nullopt : std::optional(b.cast<int64_t>());
    };
    return IndexSlice{bound("start"), bound("stop"), bound("step").value_or(1)};
  }
  if (PyIndex_Check(item.ptr()) && !PyBool_Check(item.ptr()) && !THPVariable_Check(item.ptr())) {
    return py::int_(py::reinterpret_borrow<py::object>(item)).cast<int64_t>();
  }
  throw Error(absl::StrCat(
      "index by ", std::string(py::str(py::type::of(item))),
      ": integers, slices, None and ... can index a DTensor; for others use full_tensor()"));
}

std::vector<IndexItem> ToIndex(const py::object& key) {
  std::vector<IndexItem> items;
  if (!py::isinstance<py::tuple>(key)) return {ToIndexItem(key)};
  for (const py::handle& item : key.cast<py::tuple>()) items.push_back(ToIndexItem(item));
  return items;
}

// x.reshape(2, 3) and x.reshape((2, 3))
std::vector<int64_t> ToSizes(const py::args& args) {
  if (args.size() == 1 && !PyLong_Check(args[0].ptr())) return args[0].cast<std::vector<int64_t>>();
  return args.cast<std::vector<int64_t>>();
}

void BindReductions(py::class_<DTensor>& cls) {
  const auto reduction = [&cls](const char* name, DTensor (*fn)(const DTensor&, const Dims&, bool),
                                const char* doc) {
    cls.def(
        name,
        [fn](const DTensor& x, const DimsArg& dim, bool keepdim) {
          return fn(x, ToDims(dim), keepdim);
        },
        py::arg("dim") = py::none(), py::arg("keepdim") = false, NoGil(), doc);
  };
  reduction("sum", &Sum,
            "Sum over dim (one, several, or all). Split dimensions leave +sum pending; no "
            "communication.");
  reduction("mean", &Mean, "Mean over dim. Split dimensions leave +sum pending; no communication.");
  reduction("max", &Max,
            "Largest values over dim, as torch's amax. Split dimensions leave +max pending; with a "
            "gradient the "
            "reduction ends here. LinsError over no elements.");
  reduction("min", &Min, "Smallest values over dim: see max.");
  cls.def(
      "norm",
      [](const DTensor& x, double p, const DimsArg& dim, bool keepdim) {
        return Norm(x, p, ToDims(dim), keepdim);
      },
      py::arg("p") = 2.0, py::arg("dim") = py::none(), py::arg("keepdim") = false, NoGil(),
      "The p-norm, p = 1, 2 or inf. Pending values are reduced first; the 2-norm over split "
      "dimensions reduces.");
  const auto arg = [&cls](const char* name, auto fn) {
    cls.def(name, fn, py::arg("dim") = py::none(), py::arg("keepdim") = false, NoGil(),
            "Index, in the whole tensor, of the first extremum along dim or of all elements. "
            "Collective.");
  };
  arg("argmax", &ArgMax);
  arg("argmin", &ArgMin);
}

void BindShapes(py::class_<DTensor>& cls) {
  for (const char* name : {"reshape", "view"}) {
    cls.def(
        name, [](const DTensor& x, const py::args& shape) { return Reshape(x, ToSizes(shape)); },
        "The same elements in another shape, memory shared. LinsError where no layout describes "
        "the result.");
  }
  cls.def("transpose", &Transpose, py::arg("dim0"), py::arg("dim1"), NoGil(),
          "Two dimensions swapped, the layout with them. No communication; LinsError under F.");
  const auto t = [](const DTensor& x) {
    if (x.dim() > 2) {
      throw Error(absl::StrCat("t of shape ", ShapeToString(x.shape()),
                               ": at most two dimensions; use transpose"));
    }
    return x.dim() == 2 ? Transpose(x, 0, 1) : x;
  };
  cls.def("t", t, NoGil(), "The transposed matrix.").def_property_readonly("T", t);
  cls.def(
      "__getitem__", [](const DTensor& x, const py::object& key) { return Index(x, ToIndex(key)); },
      py::arg("key"),
      "Indexing by integers, slices, None and ... in dimensions that are not split. No "
      "communication.");
  cls.def("__len__", [](const DTensor& x) {
    if (x.dim() == 0) throw py::type_error("len() of a 0-d tensor");
    return x.shape()[0];
  });
  cls.def("__iter__", [](const DTensor& x) {
    if (x.dim() == 0) throw py::type_error("iteration over a 0-d tensor");
    py::list rows;
    for (int64_t i = 0; i < x.shape()[0]; ++i) rows.append(Index(x, {i}));
    return py::iter(rows);
  });
}

}  // namespace

void BindDTensorOps(py::class_<DTensor>& cls) {
  BindBinary(cls, "__add__", "__radd__", BinaryOp::kAdd);
  BindBinary(cls, "__sub__", "__rsub__", BinaryOp::kSub);
  BindBinary(cls, "__mul__", "__rmul__", BinaryOp::kMul);
  BindBinary(cls, "__truediv__", "__rtruediv__", BinaryOp::kDiv);
  const char* const names[][2] = {{"__eq__", "eq"}, {"__ne__", "ne"}, {"__lt__", "lt"},
                                  {"__le__", "le"}, {"__gt__", "gt"}, {"__ge__", "ge"}};
  for (int i = 0; i < 6; ++i) {
    for (const char* name : names[i]) {
      BindBinary(cls, name, nullptr, static_cast<BinaryOp>(static_cast<int>(BinaryOp::kEq) + i));
    }
  }
  cls.def("__hash__", [](const py::object& x) { return reinterpret_cast<intptr_t>(x.ptr()) >> 4; });
  const char* const arithmetic[] = {"add", "sub", "mul", "div"};
  const char* const in_place[][2] = {
      {"__iadd__", "add_"}, {"__isub__", "sub_"}, {"__imul__", "mul_"}, {"__itruediv__", "div_"}};
  for (int i = 0; i < 4; ++i) {
    BindBinary(cls, arithmetic[i], nullptr, static_cast<BinaryOp>(i));
    BindInPlace(cls, in_place[i][0], in_place[i][1], static_cast<BinaryOp>(i));
  }
  cls.def("__neg__", &Neg, NoGil()).def("neg", &Neg, NoGil());
  cls.def("__abs__", &Abs, NoGil()).def("abs", &Abs, NoGil());
  cls.def("__matmul__", &MatMul, NoGil(), py::is_operator())
      .def("matmul", &MatMul, py::arg("other"), NoGil(),
           "(m, k) @ (k, n): rows and columns stay split, a split k leaves +sum pending. Operands "
           "that fit no "
           "local rule are redistributed with the least bytes.");
  cls.def(
      "equal", &Equal, py::arg("other"), NoGil(),
      "Whether shapes and all elements are equal: one bool, the same on every rank. Collective.");
  cls.def("allclose", &AllClose, py::arg("other"), py::arg("rtol") = 1e-5, py::arg("atol") = 1e-8,
          py::arg("equal_nan") = false, NoGil(),
          "Whether all elements are close: one bool, the same on every rank. Collective.");
  const auto item = [](const DTensor& x) {
    c10::Scalar value;
    {
      py::gil_scoped_release no_gil;
      value = Item(x);
    }
    return py::cast(value);
  };
  cls.def("item", item, "The only element, as a number on every rank. Collective.");
  cls.def("__float__", [item](const DTensor& x) { return py::float_(item(x)); });
  cls.def("__int__", [item](const DTensor& x) { return py::int_(item(x)); });
  cls.def("__bool__", [item](const DTensor& x) { return py::bool_(item(x)); });
  BindReductions(cls);
  BindShapes(cls);
}

}  // namespace lins
