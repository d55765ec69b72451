// Where nothing fits: the least memory that works, and changes that do.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "lins_policy/solve.h"
#include "problems.h"

namespace lins {
namespace {

TEST(InfeasibleTest, LeastBytesIsTheSmallestCapThatWorks) {
  Random random(1);
  for (int instance = 0; instance < 150; ++instance) {
    Problem p = RandomProblem(random, random.Int(1, 3));
    p.settings.uniform = instance % 2 == 0;
    p.settings.split_repeats = instance % 4 == 1;
    if (p.settings.uniform && instance % 3 == 0) {
      p.settings.scales = {{p.cluster.nodes, 2, 1.0}};
    }
    p.settings.cap_bytes = 1;
    const auto none = Solve(p.spec, p.cluster, p.settings);
    ASSERT_FALSE(none.ok());
    const std::optional<InfeasibleAnswer> answer = InfeasibleOf(none.status());
    ASSERT_TRUE(answer) << none.status();
    p.settings.cap_bytes = answer->least_bytes;
    const auto just = Solve(p.spec, p.cluster, p.settings);
    ASSERT_TRUE(just.ok()) << just.status();
    EXPECT_EQ(just->memory.total(), answer->least_bytes);
    p.settings.cap_bytes = answer->least_bytes - 1;
    const auto less = Solve(p.spec, p.cluster, p.settings);
    ASSERT_FALSE(less.ok());
    EXPECT_EQ(InfeasibleOf(less.status())->least_bytes, answer->least_bytes);
  }
}

TEST(InfeasibleTest, TheLargestItemsAreThoseOfThatPlan) {
  const ModelSpec spec = *ModelSpec::Llama("30B", {});
  const auto none = Solve(spec, A800(1), {});
  ASSERT_FALSE(none.ok());
  const InfeasibleAnswer answer = *InfeasibleOf(none.status());
  ASSERT_EQ(answer.largest.size(), 4u);
  EXPECT_TRUE(absl::StrContains(none.status().message(), absl::StrCat(answer.least_bytes)));
  const Plan least = *PricePlan(spec, A800(1), {{{8, 1}, {8, 1}, {8, 1}}}, {});
  EXPECT_EQ(least.memory.total(), answer.least_bytes);
  int64_t before = answer.largest[0].second;
  for (const auto& [name, bytes] : answer.largest) {
    EXPECT_LE(bytes, before);
    before = bytes;
    bool found = false;
    for (const auto& [item, size] : least.memory.List()) found |= item == name && size == bytes;
    EXPECT_TRUE(found) << name;
  }
  EXPECT_FALSE(InfeasibleOf(absl::OkStatus()));
  EXPECT_FALSE(InfeasibleOf(absl::InvalidArgumentError("x")));
}

// "recompute='full', nodes=4: needs 123 bytes" is a plan of that many bytes.
void ExpectSuggestionHolds(const std::string& text, const ModelSpec& spec, const Cluster& cluster,
                           const PlanSettings& settings) {
  const std::vector<std::string> parts = absl::StrSplit(text, ": needs ");
  ASSERT_EQ(parts.size(), 2u) << text;
  ModelSpec changed = spec;
  Cluster there = cluster;
  PlanSettings then = settings;
  for (absl::string_view change : absl::StrSplit(parts[0], ", ")) {
    const std::vector<std::string> kv = absl::StrSplit(change, '=');
    int64_t number = 0;
    if (kv[0] == "recompute") {
      changed.training.recompute = Recompute::kFull;
    } else if (kv[0] == "micro_batch" && absl::SimpleAtoi(kv[1], &number)) {
      changed = *changed.WithMicroBatch(number);
    } else if (kv[0] == "nodes" && absl::SimpleAtoi(kv[1], &number)) {
      there.nodes = number;
    } else if (kv[0] == "offload" && kv[1] == "True") {
      then.memory.offload = true;
    } else {
      FAIL() << text;
    }
  }
  const auto plan = Solve(changed, there, then);
  ASSERT_TRUE(plan.ok()) << text << ": " << plan.status();
  PlanSettings least = then;
  least.cap_bytes = 1;
  EXPECT_TRUE(absl::StartsWith(
      parts[1],
      absl::StrCat(InfeasibleOf(Solve(changed, there, least).status())->least_bytes, " bytes")))
      << text;
}

TEST(InfeasibleTest, SuggestionsFit) {
  int suggestions = 0;
  const auto check = [&](const ModelSpec& spec, const Cluster& cluster,
                         const PlanSettings& settings) {
    const auto none = Solve(spec, cluster, settings);
    if (none.ok()) return;
    const InfeasibleAnswer answer = *InfeasibleOf(none.status());
    for (const std::string& text : answer.suggestions) {
      ExpectSuggestionHolds(text, spec, cluster, settings);
      ++suggestions;
    }
  };
  for (const char* size : {"7B", "13B", "30B"}) {
    for (const int64_t micro_batch : {1, 4, 16}) {
      const ModelSpec spec = *ModelSpec::Llama(size, {.micro_batch = micro_batch});
      for (const int64_t nodes : {1, 4}) {
        PlanSettings settings;
        check(spec, A800(nodes), settings);
        settings.scales = {{1, 4, 1.0}};  // which more nodes do not help
        check(spec, A800(nodes), settings);
        Cluster quota = A800(nodes);
        quota.quota_bytes = 20LL << 30;
        check(spec, quota, {});
      }
    }
  }
  PlanSettings per_unit;
  per_unit.uniform = false;
  check(*ModelSpec::Llama("7B", {.micro_batch = 16}), A800(1), per_unit);
  EXPECT_GT(suggestions, 30);
}

}  // namespace
}  // namespace lins
