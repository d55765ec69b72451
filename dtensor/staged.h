// An execution of a prepared plan as stages of at most one collective each, for Lanes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/lanes.h"
#include "dtensor/prepared_plan.h"

namespace lins {

struct StagedTensors {
  at::Tensor local, out;  // as in Execute
};

// Adds the stages to a list. `tensors` is called when the first of them runs.
void AddStages(std::shared_ptr<const PreparedPlan> plan, std::function<StagedTensors()> tensors,
               std::vector<Stage>& stages);

}  // namespace lins
