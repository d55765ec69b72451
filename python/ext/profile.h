// How Python names a profile: by a Profile, a shipped name or a path.
#pragma once

#include <string>

#include "common.h"
#include "lins_policy/profile.h"

namespace lins {

// "all_gather" and so on: what profiles time.
inline StepKind ParseProfileOp(const std::string& name) {
  for (StepKind op : {StepKind::kAllGather, StepKind::kReduceScatter, StepKind::kAllReduce,
                      StepKind::kBroadcast, StepKind::kAllToAll}) {
    if (name == StepKindName(op)) return op;
  }
  throw Error("unknown operation '" + name +
              "': profiles time all_gather, reduce_scatter, all_reduce, broadcast and all_to_all");
}
// A lins.Profile, a shipped name or a path (str or os.PathLike).
Profile ToProfile(const py::object& profile);

}  // namespace lins
