#include "dtensor/staged.h"

#include <utility>

#include "dtensor/execute.h"
#include "dtensor/plan_run.h"

namespace lins {

void AddStages(std::shared_ptr<const PreparedPlan> plan, std::function<StagedTensors()> tensors,
               std::vector<Stage>& stages) {
  const size_t steps = plan->steps().size();
  if (steps <= 1) {
    Stage stage;
    if (steps == 1 && plan->steps()[0].communicates()) stage.group = plan->steps()[0].group;
    stage.run = [plan, tensors = std::move(tensors)] {
      const StagedTensors t = tensors();
      Execute(*plan, t.local, t.out);
    };
    stages.push_back(std::move(stage));
    return;
  }
  const auto run = std::make_shared<std::optional<PlanRun>>();
  for (size_t i = 0; i < steps; ++i) {
    Stage stage;
    if (plan->steps()[i].communicates()) stage.group = plan->steps()[i].group;
    stage.run = [plan, run, i, steps, tensors] {
      if (i == 0) {
        StagedTensors t = tensors();
        run->emplace(*plan, std::move(t.local), std::move(t.out), World::Lane::kCaller);
      }
      (*run)->Step();
      if (i + 1 < steps) return;
      (*run)->Finish();
      run->reset();
    };
    stages.push_back(std::move(stage));
  }
}

}  // namespace lins
