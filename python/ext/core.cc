// lins._core: communicators, DTensor and runtime, on torch.
#include "core.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The parts of lins that need torch.";
  lins::py::module_::import("torch");
  lins::py::module_::import("lins._planning");
  lins::RegisterErrors();
  lins::BindComm(m);
  lins::BindDTensor(m);
  lins::BindFactories(m);
  lins::BindRuntime(m);
  lins::BindOptimizers(m);
  lins::BindMeasure(m);
}
