#include "runtime/module.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {
namespace {

// Names of the modules that are units, in order.
void FindUnits(torch::nn::Module& module, const std::string& prefix, bool in_list,
               std::vector<std::string>& out) {
  for (const auto& child : module.named_children()) {
    const std::string name = prefix.empty() ? child.key() : absl::StrCat(prefix, ".", child.key());
    const bool is_list = child.value()->as<torch::nn::ModuleListImpl>() != nullptr;
    if (in_list && !is_list) {
      out.push_back(name);
    } else {
      FindUnits(*child.value(), name, is_list, out);
    }
  }
}

}  // namespace

std::vector<UnitSpec> ModuleUnits(torch::nn::Module& module, const Policy& policy) {
  std::vector<std::string> names;
  FindUnits(module, "", false, names);
  std::vector<UnitSpec> units = {{"", {}, policy}};
  for (const std::string& name : names) units.push_back({name, {}, policy});
  struct Place {
    std::string name;
    size_t unit;
    at::Tensor param;
  };
  std::vector<Place> places;
  std::map<at::TensorImpl*, size_t> seen;  // of places
  for (const auto& p : module.named_parameters()) {
    size_t unit = 0;
    for (size_t u = 1; u < units.size(); ++u) {
      if (p.key().rfind(units[u].name + ".", 0) == 0) unit = u;
    }
    const auto [it, fresh] = seen.try_emplace(p.value().unsafeGetTensorImpl(), places.size());
    if (fresh) {
      places.push_back({p.key(), unit, p.value()});
    } else if (places[it->second].unit != unit) {
      places[it->second].unit = 0;
    }
  }
  for (Place& p : places) units[p.unit].params.push_back({p.name, p.param});
  return units;
}

std::shared_ptr<ShardedModel> LinsShard(torch::nn::Module& module, const LiveMesh& mesh,
                                        absl::string_view policy, const ShardOptions& options) {
  const absl::StatusOr<Policy> parsed = ParsePolicy(policy, mesh);
  mesh.world().CheckAgreement("the policy", parsed.ok() ? parsed->ToString() : std::string(policy));
  ThrowIfError(parsed.status());
  std::vector<UnitSpec> units = ModuleUnits(module, *parsed);
  // FSDP2's root, needed again as soon as the backward begins, stays whole until then.
  if (policy == "fsdp2") units[0].policy.between = Factors(mesh.ndim(), 1);
  return ShardedModel::Create(mesh, std::move(units), options);
}

}  // namespace lins
