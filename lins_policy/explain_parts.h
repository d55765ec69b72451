// What explanations share; explain.h is the interface.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"

namespace lins {

// A collective of one unit of a plan's share.
struct CountedCollective {
  size_t unit;
  int64_t copies;
  PricedCollective collective;
  double times() const { return static_cast<double>(copies) * collective.times; }
  double seconds() const { return times() * collective.each.seconds; }
};
absl::StatusOr<std::vector<CountedCollective>> CollectivesOf(const Plan& plan);

// Half the message would take more than three quarters of the time.
bool LatencyBound(const Profile& profile, const PricedCollective& collective);

}  // namespace lins
