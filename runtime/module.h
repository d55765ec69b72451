// Sharding a libtorch module.
//
//   auto model = LinsShard(*net, mesh, "P=1 G=1 OS=2");       // units: elements of ModuleLists,
//   and the rest at::Tensor y = model->Call(model->UnitIndex("layers.0"), {x}, [&](auto in) { ...
//   });
//
// libtorch modules have no forward hooks, so a forward names its units by Call. The root is unit 0,
// and its Call goes around the whole forward.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/sharded_model.h"

namespace torch::nn {
class Module;
}

namespace lins {

// The elements of every outermost ModuleList become units, whatever else has parameters the root,
// which comes first. A parameter that two units share belongs to the root.
std::vector<UnitSpec> ModuleUnits(torch::nn::Module& module, const Policy& policy);

// `policy` as in ParsePolicy. Collective.
std::shared_ptr<ShardedModel> LinsShard(torch::nn::Module& module, const LiveMesh& mesh,
                                        absl::string_view policy, const ShardOptions& options = {});

}  // namespace lins
