// The redistributions that a mesh has carried out, prepared, and the buffers they share.
#pragma once

#include <memory>
#include <mutex>

#include "absl/container/flat_hash_set.h"
#include "dtensor/prepared_plan.h"
#include "dtensor/staging.h"

namespace lins {

class PlanCache {
 public:
  // Plans for the fewest bytes, of role other. Throws what planning finds wrong. Thread safe.
  std::shared_ptr<const PreparedPlan> Get(const Layout& src, const Layout& dst, int64_t itemsize,
                                          const LiveMesh& mesh);
  const std::shared_ptr<Staging>& staging() const { return staging_; }

 private:
  static constexpr size_t kMost = 4096;  // plans; when there are more it starts anew
  struct Question {
    const Layout *src, *dst;
    int64_t itemsize;
  };
  using Entry = std::shared_ptr<const PreparedPlan>;
  static Question Of(const Question& q) { return q; }
  static Question Of(const Entry& e) { return {&e->src(), &e->dst(), e->itemsize()}; }
  struct Hash {  // of what was asked, without a copy of it
    using is_transparent = void;
    template <typename T>
    size_t operator()(const T& x) const {
      const Question q = Of(x);
      return absl::HashOf(q.src->terms(), q.dst->terms(), q.src->shape(), q.itemsize);
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename T, typename U>
    bool operator()(const T& x, const U& y) const {
      const Question a = Of(x), b = Of(y);
      return a.itemsize == b.itemsize && *a.src == *b.src && *a.dst == *b.dst;
    }
  };

  std::mutex mutex_;
  absl::flat_hash_set<Entry, Hash, Equal> plans_;
  std::shared_ptr<Staging> staging_ = std::make_shared<Staging>();
};

}  // namespace lins
