// What a plan is, what it costs, and why it is this one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"
#include "lins_policy/report.h"

namespace lins {

// Per state: pieces within and across nodes, layout, bytes per GPU, main collective, seconds. Costs
// by term, memory by item, the presets and runners-up with what speaks against each; warnings where
// sharding does not pay, where messages are latency-bound, and where terms are extrapolated.
absl::StatusOr<Report> Explain(const Plan& plan);

// One unit (a name of the plan's share): its collectives, and every other policy it could have with
// what that would change.
absl::StatusOr<Report> Why(const Plan& plan, absl::string_view unit);

// What differs: inputs, placements, costs, memory.
absl::StatusOr<Report> Diff(const Plan& a, const Plan& b);

// Time against memory: plans by rising memory, each with its speed-up over the leanest and the
// bytes that it takes, of a shared GPU, from others.
Report ExplainFrontier(const std::vector<Plan>& frontier);

// Terms (T_p, ...) whose times are not measured ones, with the reasons.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ExtrapolatedTerms(
    const Plan& plan);

}  // namespace lins
