#include "dtensor/plan_cache.h"

#include <utility>

#include "mesh/error.h"

namespace lins {

std::shared_ptr<const PreparedPlan> PlanCache::Get(const Layout& src, const Layout& dst,
                                                   int64_t itemsize, const LiveMesh& mesh) {
  {
    std::lock_guard lock(mutex_);
    if (const auto it = plans_.find(Question{&src, &dst, itemsize}); it != plans_.end()) return *it;
  }
  Entry made =
      PreparedPlan::Create(*ValueOrThrow(CachedPlan(src, dst, itemsize)), mesh, Role::kOther);
  std::lock_guard lock(mutex_);
  if (plans_.size() >= kMost) plans_.clear();
  return *plans_.insert(std::move(made)).first;
}

}  // namespace lins
