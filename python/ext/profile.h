// How Python names a profile: by a Profile, a shipped name or a path.
#pragma once

#include <string>

#include "common.h"
#include "lins_policy/profile.h"

namespace lins {

StepKind ParseProfileOp(const std::string& name);
// A lins.Profile, a shipped name or a path (str or os.PathLike).
Profile ToProfile(const py::object& profile);

}  // namespace lins
