#include "placement/redistribution.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "placement/reachable.h"
#include "placement/search.h"

namespace lins {
namespace {

int64_t PeakOf(const std::vector<Step>& steps) {
  int64_t peak = 0;
  for (const Step& s : steps) peak = std::max(peak, s.peak_bytes);
  return peak;
}

// src and dst differ only in axes of size 1.
Step Rename(const Layout& src, const Layout& dst, int64_t itemsize, const CostModel* cost_model) {
  Axes axes = dst.PartialAxes();
  const Axes had = src.PartialAxes();
  const bool begins = !axes.empty() && axes != had;
  if (!begins) axes = had;
  axes.erase(std::remove_if(axes.begin(), axes.end(), [](const SubAxis& a) { return a.size > 1; }),
             axes.end());
  return MakeStep(begins ? StepKind::kLocal : StepKind::kSlice, axes, src, dst, itemsize,
                  cost_model);
}

// The same elements on every rank without the mention of axes of one rank: a split or a reduction
// over them is none. The search knows only what makes a difference. F stays F: it has a flat shape.
Layout WithoutSingles(const Layout& layout) {
  const auto drop = [](auto& terms) {
    for (auto& t : terms) t.axes = WithoutSingles(t.axes);
    const auto empty = [](const auto& t) { return t.axes.empty(); };
    terms.erase(std::remove_if(terms.begin(), terms.end(), empty), terms.end());
  };
  Terms terms = layout.terms();
  drop(terms.shards);
  drop(terms.partials);
  if (terms.flat && Mesh::GroupSize(terms.flat->axes) > 1) {
    terms.flat->axes = WithoutSingles(terms.flat->axes);
  }
  return layout.WithTerms(std::move(terms));
}

struct PlanKey {
  const Layout *src, *dst;
  int64_t itemsize;
};

struct CachedPlanEntry {
  RedistributionPlan plan;
  PlanKey key() const { return {&plan.src, &plan.dst, plan.itemsize}; }
};

// Looks plans up by what was asked, without a copy of it.
struct KeyHash {
  using is_transparent = void;
  size_t operator()(const PlanKey& k) const {
    return absl::HashOf(k.src->terms(), k.dst->terms(), k.src->shape(), k.itemsize);
  }
  size_t operator()(const std::unique_ptr<const CachedPlanEntry>& e) const {
    return (*this)(e->key());
  }
};
struct KeyEqual {
  using is_transparent = void;
  static PlanKey Key(const PlanKey& k) { return k; }
  static PlanKey Key(const std::unique_ptr<const CachedPlanEntry>& e) { return e->key(); }
  template <typename A, typename B>
  bool operator()(const A& x, const B& y) const {
    const PlanKey a = Key(x), b = Key(y);
    return a.itemsize == b.itemsize && *a.src == *b.src && *a.dst == *b.dst;
  }
};

}  // namespace

absl::string_view StepKindName(StepKind kind) {
  static constexpr std::array<const char*, 9> kNames = {
      "slice",      "local",   "all_gather", "reduce_scatter", "all_reduce",
      "all_to_all", "permute", "broadcast",  "exchange"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<RedistributionPlan> PlanRedistribution(const Layout& src, const Layout& dst,
                                                      int64_t itemsize,
                                                      const PlanOptions& options) {
  if (itemsize < 1) return InvalidArgument("itemsize is ", itemsize, ", must be at least 1 byte");
  LINS_RETURN_IF_ERROR(CheckReachable(src, dst));
  RedistributionPlan plan{src, dst, itemsize, {}};
  PlanSpace space(WithoutSingles(src), WithoutSingles(dst));
  plan.lower_bound_bytes =
      Bound(space).AtLeast(nullptr, space.src(), space.src_pending()) * itemsize;
  plan.peak_bytes = space.split(space.src()).most * itemsize;
  if (src == dst) return plan;
  SearchOptions search;
  search.cost_model = options.cost_model;
  search.itemsize = itemsize;
  if (options.max_peak_bytes) search.max_peak = *options.max_peak_bytes;
  SearchResult result = SearchPlan(space, search);
  if (result.found && result.steps.empty()) {
    result.steps.push_back(Rename(src, dst, itemsize, options.cost_model));
  }
  if (!result.found || PeakOf(result.steps) > search.max_peak) {
    SearchOptions least;
    least.itemsize = itemsize;
    least.least_peak = true;
    const SearchResult lowest = SearchPlan(space, least);
    LINS_CHECK(lowest.found, "no way from ", Describe(src), " to ", dst.ToString());
    const int64_t peak = lowest.steps.empty() ? PeakOf(result.steps) : PeakOf(lowest.steps);
    return InvalidArgument("max_peak_bytes=", search.max_peak, " is too small for ", src.ToString(),
                           " -> ", dst.ToString(), " of ", ShapeToString(src.shape()),
                           ": the least possible is ", peak);
  }
  plan.steps = std::move(result.steps);
  plan.steps.front().before = src;
  plan.steps.back().after = dst;
  plan.recv_bytes = result.received * itemsize;
  for (const Step& s : plan.steps) plan.seconds += s.seconds;
  plan.peak_bytes = std::max(plan.peak_bytes, PeakOf(plan.steps));
  return plan;
}

absl::StatusOr<const RedistributionPlan*> CachedPlan(const Layout& src, const Layout& dst,
                                                     int64_t itemsize) {
  static auto* mutex = new std::mutex;
  static auto* cache =
      new absl::flat_hash_set<std::unique_ptr<const CachedPlanEntry>, KeyHash, KeyEqual>;
  const PlanKey key{&src, &dst, itemsize};
  {
    std::lock_guard lock(*mutex);
    if (auto it = cache->find(key); it != cache->end()) return &(*it)->plan;
  }
  LINS_ASSIGN_OR_RETURN(RedistributionPlan plan, PlanRedistribution(src, dst, itemsize));
  auto entry = std::make_unique<const CachedPlanEntry>(CachedPlanEntry{std::move(plan)});
  std::lock_guard lock(*mutex);
  return &(*cache->insert(std::move(entry)).first)->plan;
}

}  // namespace lins
