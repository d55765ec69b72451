// Measuring a live cluster, for lins.profiling.
#include "core.h"
#include "dtensor_args.h"
#include "profile.h"
#include "runtime/measure.h"

namespace lins {

void BindMeasure(py::module_& m) {
  m.def(
      "measure_collective",
      [](const LiveMesh& mesh, const std::string& op, int64_t gpus, int64_t nodes, int64_t nbytes,
         double budget, const py::object& dtype) {
        MeasureOptions options;
        options.budget_seconds = budget;
        options.dtype = OptionalDtype(dtype).value_or(c10::kFloat);
        const StepKind kind = ParseProfileOp(op);
        Measurement measured;
        {
          py::gil_scoped_release no_gil;
          measured = MeasureCollective(mesh, kind, gpus, nodes, nbytes, options);
        }
        py::dict point;
        point["bytes"] = measured.point.bytes;
        point["median"] = measured.point.median;
        point["p95"] = measured.point.p95;
        point["stddev"] = measured.point.stddev;
        point["samples"] = measured.point.samples;
        return py::make_tuple(point, measured.elapsed);
      },
      py::arg("mesh"), py::arg("op"), py::arg("gpus"), py::arg("nodes"), py::arg("nbytes"),
      py::arg("budget"), py::arg("dtype") = py::none(),
      "(the point as a profile's file has it, seconds it took). Collective.");
  m.def(
      "measure_compute",
      [](const LiveMesh& mesh, double budget, const py::object& dtype) {
        MeasureOptions options;
        options.budget_seconds = budget;
        options.dtype = OptionalDtype(dtype).value_or(c10::kFloat);
        ComputeProfile measured;
        {
          py::gil_scoped_release no_gil;
          measured = MeasureCompute(mesh, options);
        }
        py::dict out;
        out["flops_per_second"] = measured.flops_per_second;
        out["overlap_slowdown"] = measured.overlap_slowdown;
        return out;
      },
      py::arg("mesh"), py::arg("budget"), py::arg("dtype") = py::none(),
      "{'flops_per_second', 'overlap_slowdown'} of all ranks at once. Collective.");
}

}  // namespace lins
