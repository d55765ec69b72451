// lins.DTensor: making, moving, looking at.
#include <ATen/ATen.h>

#include "dtensor/gradient.h"
#include "dtensor/ops.h"
#include "dtensor_args.h"

namespace lins {
namespace {

DTensor FromLocal(const at::Tensor& local, const LiveMesh& mesh, const LayoutArg& layout,
                  const std::optional<std::vector<int64_t>>& shape) {
  if (const auto* whole = std::get_if<Layout>(&layout))
    return DTensor::FromLocal(local, mesh, *whole);
  if (shape) return DTensor::FromLocal(local, mesh, Resolve(layout, ShapeOf(*shape), mesh));
  if (const auto* text = std::get_if<std::string>(&layout))
    return DTensor::FromLocal(local, mesh, *text);
  // The notation of placements does not depend on sizes: any shape of this rank will do to print
  // it.
  const Shape own(local.sizes().begin(), local.sizes().end());
  return DTensor::FromLocal(local, mesh, Resolve(layout, own, mesh).ToString());
}

// DTensor(S0(gpu) of (4, 2), float32, Mesh(node=1, gpu=2), rank 0 holds [0, 2) x [0, 2):
// tensor([[...]]))
std::string Repr(const DTensor& x) {
  const auto ranges = x.layout().RangesOf(x.mesh().rank());
  std::string held;
  for (const Range& r : ranges) {
    absl::StrAppend(&held, held.empty() ? "" : " x ", "[", r.first, ", ", r.second, ")");
  }
  if (x.layout().IsFlatOrOwned()) absl::StrAppend(&held, " of its elements in order");
  const std::string dtype = py::str(py::cast(x.dtype()));
  return absl::StrCat("DTensor(", x.layout().ToString(), ", shape=", ShapeToString(x.shape()),
                      ", dtype=", dtype, ", ", x.mesh().ToString(), ", rank ", x.mesh().rank(),
                      held.empty() ? "" : " holds ", held, ":\n",
                      std::string(py::str(py::cast(x.ToLocal().detach()))), ")");
}

// The gradient of the value, under the layout that gradients of x have.
std::optional<DTensor> Grad(const DTensor& x) {
  const at::Tensor grad = x.ToLocal().grad();
  if (!grad.defined()) return std::nullopt;
  const DTensor out = DTensor::FromLocal(grad, x.mesh(), GradientLayout(x.layout()));
  const double scale = GradientScale(x.layout());
  return scale == 1 ? out : Mul(out, c10::Scalar(scale));
}

void Backward(const DTensor& x, const std::optional<DTensor>& gradient,
              const py::object& retain_graph, bool create_graph) {
  std::optional<at::Tensor> seed;
  {
    py::gil_scoped_release no_gil;
    const Layout layout = GradientLayout(x.layout());
    if (!gradient && x.layout().numel() != 1) {
      throw Error(absl::StrCat("backward of shape ", ShapeToString(x.shape()),
                               ": give the gradient, or reduce it to one element"));
    }
    if (gradient && gradient->shape() != x.shape()) {
      throw Error(absl::StrCat("backward: a gradient of shape ", ShapeToString(gradient->shape()),
                               " for a tensor of shape ", ShapeToString(x.shape())));
    }
    if (layout.IsPartial()) {
      throw Error(absl::StrCat("backward of ", Describe(x.layout()), ": end its reduction first"));
    }
    seed = gradient ? gradient->Redistribute(layout).ToLocal() : at::ones_like(x.ToLocal());
    if (GradientScale(x.layout()) != 1) seed = *seed / GradientScale(x.layout());
  }
  py::module_::import("torch.autograd")
      .attr("backward")(py::make_tuple(x.ToLocal()), py::make_tuple(*seed),
                        py::arg("retain_graph") = retain_graph,
                        py::arg("create_graph") = create_graph);
}

// A Python object of a value, from a place without Python's lock.
template <typename T>
py::object Cast(T value) {
  py::gil_scoped_acquire gil;
  return py::cast(std::move(value));
}

// What is in flight may be the last to hold a world: never let go with Python's lock in hand.
struct PendingRelease {
  void operator()(PendingDTensor* pending) const {
    py::gil_scoped_release no_gil;
    delete pending;
  }
};

void BindPending(py::module_& m) {
  py::class_<PendingDTensor, std::unique_ptr<PendingDTensor, PendingRelease>>(
      m, "PendingDTensor", "A redistribution in flight: redistribute(layout, async_op=True).")
      .def("wait", &PendingDTensor::Wait, NoGil(),
           "The result, once it is there. Raises what failed; waiting again does the same again.")
      .def("done", &PendingDTensor::Done, NoGil(),
           "Whether wait() would return or raise at once, without waiting for other ranks.");
}

void BindAutograd(py::class_<DTensor>& cls) {
  cls.def_property_readonly("requires_grad",
                            [](const DTensor& x) { return x.ToLocal().requires_grad(); })
      .def_property_readonly("is_leaf", [](const DTensor& x) { return x.ToLocal().is_leaf(); })
      .def_property_readonly(
          "grad", &Grad, "The gradient as a DTensor, or None: see docs/dtensor.md for its layout.")
      .def(
          "requires_grad_",
          [](const py::object& self, bool requires_grad) {
            py::cast(self.cast<DTensor>().ToLocal()).attr("requires_grad_")(requires_grad);
            return self;
          },
          py::arg("requires_grad") = true, "Turns recording on or off, on every rank alike.")
      .def("detach", &Detach, "The same local tensor without its history.")
      .def("backward", &Backward, py::arg("gradient") = py::none(),
           py::arg("retain_graph") = py::none(), py::arg("create_graph") = false,
           "Gradients of this tensor of one element, or with a gradient of its shape. Collective.");
}

void BindCopies(py::class_<DTensor>& cls) {
  cls.def("clone", &Clone, "A copy with memory of its own. Recorded by autograd.")
      .def(
          "to",
          [](const DTensor& x, const py::object& dtype) {
            const auto type = OptionalDtype(dtype);
            py::gil_scoped_release no_gil;
            return type ? To(x, *type) : x;
          },
          py::arg("dtype"), "Converted to a dtype; pending values are reduced first.")
      .def("__copy__", [](const DTensor& x) { return x; })
      .def(
          "__deepcopy__",
          [](const DTensor& x, const py::object& memo) {
            const py::object local =
                py::module_::import("copy").attr("deepcopy")(x.ToLocal(), memo);
            return DTensor::FromLocal(local.cast<at::Tensor>(), x.mesh(), x.layout());
          },
          py::arg("memo"))
      .def(
          "__reduce_ex__",
          [](const DTensor& x, int) -> py::object {
            throw Error(
                absl::StrCat("a DTensor cannot be pickled: it belongs to processes that run (",
                             x.mesh().ToString(), ", rank ", x.mesh().rank(),
                             "). Pickle x.full_tensor() or (x.to_local(), x.layout), or save it "
                             "with lins.save"));
          },
          py::arg("protocol"));
}

}  // namespace

void BindDTensor(py::module_& m) {
  BindPending(m);
  py::class_<DTensor> cls(
      m, "DTensor", py::dynamic_attr(),
      "This rank's part of a global tensor, and the layout that says which part.\n\n"
      "Made by distribute_tensor, DTensor.from_local or a factory (lins.zeros, lins.randn, ...). "
      "Layouts are given in the notation ('S0(gpu)'), as a list of placements, or as a Layout. "
      "Every rank of the mesh calls the same methods in the same order.");
  cls.def_static("from_local", &FromLocal, py::arg("local"), py::arg("mesh"), py::arg("layout"),
                 py::arg("shape") = py::none(), NoGil(),
                 "Takes local, autograd history included, as this rank's part. shape=None: the "
                 "global shape is worked "
                 "out from all ranks' (collective), an error when they fit none.")
      .def(
          "redistribute",
          [](const DTensor& x, const LayoutArg& layout, bool async_op) -> py::object {
            py::gil_scoped_release no_gil;
            // A Layout of another shape or mesh gets the planner's error.
            const auto* whole = std::get_if<Layout>(&layout);
            const Layout to = whole ? *whole : Resolve(layout, x.shape(), x.mesh());
            if (!async_op) return Cast(x.Redistribute(to));
            return Cast(x.RedistributeAsync(to));
          },
          py::arg("layout"), py::arg("async_op") = false,
          "The same values under another layout. Collective, differentiable.\n\n"
          "async_op: returns a PendingDTensor at once; all steps go on beside the caller, who "
          "leaves this tensor's values alone until its wait() has returned the result. Every rank "
          "starts and waits in the same order.")
      .def("full_tensor", &DTensor::FullTensor, NoGil(),
           "The whole tensor, on every rank. Collective, differentiable.")
      .def(
          "to_local",
          [](const DTensor& x, const std::optional<LayoutArg>& grad) {
            return grad ? x.ToLocal(Resolve(*grad, x.shape(), x.mesh())) : x.ToLocal();
          },
          py::arg("grad") = py::none(), NoGil(),
          "This rank's part, shared, with its autograd history.\n\n"
          "grad: the layout that the gradient of the result has, where that is not the usual one: "
          "'+sum(gpu)' for a "
          "replicated tensor that each rank of gpu uses on data of its own. Its backward is then "
          "collective.")
      .def_property_readonly("layout", [](const DTensor& x) { return x.layout(); })
      .def_property_readonly("mesh", [](const DTensor& x) { return x.mesh(); })
      .def_property_readonly("shape", [](const DTensor& x) { return ToTuple(x.shape()); })
      .def_property_readonly("ndim", &DTensor::dim)
      .def("dim", &DTensor::dim)
      .def("numel", [](const DTensor& x) { return x.layout().numel(); })
      .def_property_readonly("dtype", &DTensor::dtype)
      .def_property_readonly("device", [](const DTensor& x) { return x.ToLocal().device(); })
      .def_property_readonly("placements",
                             [](const DTensor& x) { return ValueOrThrow(x.layout().Placements()); })
      .def("__repr__", &Repr);
  BindAutograd(cls);
  BindCopies(cls);
  BindDTensorOps(cls);
  m.def(
      "distribute_tensor",
      [](const at::Tensor& tensor, const LiveMesh& mesh, const LayoutArg& layout,
         std::optional<int64_t> src_rank) {
        const Shape shape(tensor.sizes().begin(), tensor.sizes().end());
        return DTensor::Distribute(tensor, mesh, Resolve(layout, shape, mesh), src_rank);
      },
      py::arg("tensor"), py::arg("mesh"), py::arg("layout"), py::arg("src_rank") = py::none(),
      NoGil(),
      "Keeps this rank's part of a tensor that every rank passes; with src_rank that rank's values "
      "are broadcast. "
      "The result is a leaf of autograd, which requires a gradient if the tensor does.");
}

}  // namespace lins
