// The redistributions of a unit as the Lins paper carries them out (IWQoS 2024): see unit_plan.h.
#pragma once

#include "lins_policy/unit_plan.h"

namespace lins {

// Fills in the six plans of `out`. The policy is nested, `at` are its layouts.
void PlanAsInPaper(const UnitLayouts& at, const StateSizes& sizes, const CostModel* cost_model,
                   UnitPlan& out);

}  // namespace lins
