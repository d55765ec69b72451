// The parts of lins._core, each bound in a file of its own.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "common.h"

namespace lins {

class DTensor;

void BindComm(py::module_& m);
void BindDTensor(py::module_& m);
void BindDTensorOps(py::class_<DTensor>& cls);
void BindFactories(py::module_& m);
void BindMeasure(py::module_& m);
void BindOptimizers(py::module_& m);
void BindRuntime(py::module_& m);

// For functions that may wait for other ranks: they, and their threads' Python, must go on
// meanwhile.
using NoGil = py::call_guard<py::gil_scoped_release>;
// The same for what waits when it ends: a model's streams, and who may hold the last of a model.
using EndsWithoutGil = py::release_gil_before_calling_cpp_dtor;

}  // namespace lins
