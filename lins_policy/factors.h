// Factors: into how many pieces each state is cut along each mesh axis, and which choices are
// legal.
//
//   Policy p = *ParsePolicy("P=1 G=4x1 OS=8x1", mesh);    // or a preset: "zero3", "hsdp",
//   "mics:8", "zero++:8", "megatron:8", "paro-nig"
//
// Factors are written fastest axis first, `4x1` = 4 GPUs of a node x 1 node. A single number is
// spread along the chain: 16 on nodes of 8 GPUs is 8x2. Legal plans keep P <= G <= OS in each
// factor, each dividing the next and the axis, and cut along a slower axis only what is cut along
// all of the faster ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "mesh/mesh.h"

namespace lins {

using Factors = absl::InlinedVector<int64_t, 2>;  // fastest axis (the mesh's last) first

int64_t Product(const Factors& f);
std::string FactorsToString(const Factors& f);  // 4x1

// The placements of the three states of one unit.
struct Policy {
  Factors param, grad, optim;
  // Where P stays between a forward and its backward: empty, the same; cut into fewer pieces (hpZ
  // of ZeRO++: the second gather stays within a node); into one, gathered until the backward has
  // passed.
  Factors between = {};
  friend bool operator==(const Policy&, const Policy&) = default;
  std::string ToString() const;  // P=1x1 G=4x1 OS=8x1, and between=.. where it is set
};

enum class Space {
  kPaper,   // nested, and G is placed like P or like OS
  kNested,  // the rules above
  kFull,    // also G in fewer pieces than P, and every `between`
};
absl::StatusOr<Space> ParseSpace(absl::string_view name);
std::string SpaceName(Space space);

// A preset name, or `P=.. G=.. OS=..` and optionally `between=..` in any order, each a number or
// `4x1`. It must be legal in the space.
absl::StatusOr<Policy> ParsePolicy(absl::string_view text, const Mesh& mesh,
                                   Space space = Space::kNested);
// Spreads a number of pieces along the chain of axes.
absl::StatusOr<Factors> SpreadFactor(int64_t pieces, const Mesh& mesh);

// OK when the rules above hold; kFull: when G may be cut into fewer pieces than P.
absl::Status ValidatePolicy(const Policy& policy, const Mesh& mesh, Space space = Space::kNested);

// All legal 2-D factors of one state on nodes x gpus, in order of their product.
std::vector<Factors> LegalFactors(int64_t gpus_per_node, int64_t nodes);
// All legal policies, by P, then G, then OS, then between.
std::vector<Policy> LegalPolicies(int64_t gpus_per_node, int64_t nodes, Space space);
std::vector<Policy> LegalPolicies(const Mesh& mesh, Space space);  // of a mesh (node, gpu)

// The names that ParsePolicy knows, ":8" standing for a number of ranks.
std::vector<std::string> PresetNames();

}  // namespace lins
