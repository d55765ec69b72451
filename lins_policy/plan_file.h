// Plans as JSON (docs/policy.md has the schema).
//
// A file carries everything a plan was made from, profile included, a fingerprint of it, the
// placements and layouts, costs by term, memory by item, reasons and alternatives, and a digest
// over all of that. Reading it back checks the digest, prices the placements again, and refuses a
// file that this version would price differently.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"

namespace lins {

absl::StatusOr<std::string> PlanToJson(const Plan& plan);
absl::Status SavePlan(const Plan& plan, const std::string& path);  // renamed into its place

// What a plan must be validated for again when it changes: the parts of its inputs, by name, each
// as text that differs when the part does.
std::map<std::string, std::string> Fingerprint(const ModelSpec& spec, const Cluster& cluster,
                                               const PlanSettings& settings);

// `what` stands for the file in errors. Where a model or a cluster is given, a plan made for
// another one is refused, and the error names what changed.
absl::StatusOr<Plan> PlanFromJson(absl::string_view text, absl::string_view what,
                                  const ModelSpec* spec = nullptr,
                                  const Cluster* cluster = nullptr);
absl::StatusOr<Plan> LoadPlan(const std::string& path, const ModelSpec* spec = nullptr,
                              const Cluster* cluster = nullptr);

}  // namespace lins
