// Keyword arguments that describe a plan's problem.
#pragma once

#include "common.h"
#include "lins_policy/plan.h"

namespace lins {

// A TypeError that names the argument where `value` is of a type that it cannot have.
[[noreturn]] inline void RefuseType(const std::string& name, const py::handle& value) {
  throw py::type_error(name + "=" + py::repr(value).cast<std::string>() + " is of a type that " +
                       name + " cannot have");
}
template <typename T>
T CastTo(const std::string& name, const py::handle& value) {
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    RefuseType(name, value);
  }
}

struct PlanInputs {
  ModelSpec spec;
  Cluster cluster;
  PlanSettings settings;
};

// Sets what `given` names, and takes it out of `given`: what is left is not known here. Values of
// the wrong type are a TypeError.
void ApplySettings(py::dict& given, PlanInputs& inputs);  // of lins.solve()
void ApplyCluster(py::dict& given, PlanInputs& inputs);   // nodes, memory_bytes, profile, ...
void ApplyModel(py::dict& given, PlanInputs& inputs);     // recompute, optimizer, ...
// A LinsError when anything is left; `legal` says what may be given besides the settings.
void RefuseRest(const py::dict& given, const std::string& what, const std::string& legal);
// The names of lins.solve()'s settings.
const std::vector<std::string>& SettingNames();

}  // namespace lins
