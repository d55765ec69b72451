// Which points a profile consists of, and in which order they are measured.
#include "lins_policy/measure_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace lins {
namespace {

std::vector<MeasureTask> Tasks(int64_t gpus, int64_t nodes, const MeasureGrid& grid) {
  return *PlanMeasurements(gpus, nodes, grid);
}

TEST(MeasurePlan, LegalPlacementsFirstThenTheGroupsBetweenThem) {
  std::vector<std::pair<int64_t, int64_t>> meshes;
  for (const MeasureTask& t : Tasks(4, 2, {4096, 4096})) {
    if (t.op == StepKind::kAllGather) meshes.emplace_back(t.gpus, t.nodes);
  }
  const std::vector<std::pair<int64_t, int64_t>> expected = {
      {2, 1}, {4, 1}, {4, 2}, {1, 2}, {2, 2}};
  EXPECT_EQ(meshes, expected);
  EXPECT_EQ(Tasks(4, 2, {4096, 4096, 2, false}).size(), 3 * 5);
  EXPECT_EQ(Tasks(1, 3, {4096, 4096}).size(), 1 * 5);
  EXPECT_EQ(Tasks(8, 16, {4096, 4096}).size(), (3 + 4 + 3 * 4) * 5);
}

TEST(MeasurePlan, SizesFromTheEndsInwards) {
  std::vector<int64_t> sizes;
  for (const MeasureTask& t : Tasks(2, 1, {1, 256})) {
    if (t.op == StepKind::kAllGather) sizes.push_back(t.bytes);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 256, 16, 4, 64, 2, 8, 32, 128}));
}

TEST(MeasurePlan, EachPointOnceAndTheLargestSizeAlways) {
  for (int64_t max : {4096, 5000, 1 << 20, (1 << 20) + 1}) {
    for (int64_t factor : {2, 3, 8}) {
      std::set<std::tuple<StepKind, int64_t, int64_t, int64_t>> seen;
      int64_t largest = 0;
      for (const MeasureTask& t : Tasks(2, 2, {4096, max, factor})) {
        EXPECT_TRUE(seen.insert({t.op, t.gpus, t.nodes, t.bytes}).second);
        largest = std::max(largest, t.bytes);
      }
      EXPECT_EQ(largest, max);
    }
  }
  EXPECT_EQ(Tasks(2, 1, {1, INT64_MAX, 2}).size(), 64 * 5);
}

TEST(MeasurePlan, RefusesWhatIsNoRange) {
  EXPECT_EQ(PlanMeasurements(1, 1, {}).status().message(),
            "a cluster of 1 GPUs per node x 1 nodes: collectives need at least two ranks");
  EXPECT_EQ(PlanMeasurements(2, 1, {4096, 1024}).status().message(),
            "sizes from 4096 to 1024 bytes by factors of 2: legal are 1 <= min <= max and a factor "
            "of at least 2");
  EXPECT_FALSE(PlanMeasurements(2, 1, {0, 1024}).ok());
  EXPECT_FALSE(PlanMeasurements(2, 1, {1, 1024, 1}).ok());
}

}  // namespace
}  // namespace lins
