// Keyword arguments that describe a plan's problem.
#pragma once

#include "common.h"
#include "lins_policy/plan.h"

namespace lins {

struct PlanInputs {
  ModelSpec spec;
  Cluster cluster;
  PlanSettings settings;
};

// Sets what `given` names, and takes it out of `given`: what is left is not known here. Values of
// the wrong type are a TypeError.
void ApplySettings(py::dict& given, PlanInputs& inputs);  // of lins.solve()
void ApplyCluster(py::dict& given, PlanInputs& inputs);   // nodes, memory_bytes, profile, ...
void ApplyModel(py::dict& given, PlanInputs& inputs);     // recompute, micro_batch
// A LinsError when anything is left; `legal` says what may be given besides the settings.
void RefuseRest(const py::dict& given, const std::string& what, const std::string& legal);
// The names of lins.solve()'s settings.
const std::vector<std::string>& SettingNames();

}  // namespace lins
