#include "placement/redistribution.h"

#include <array>
#include <limits>
#include <mutex>
#include <queue>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "mesh/error.h"
#include "placement/transitions.h"

namespace lins {
namespace {

// What the search minimises, in this order.
struct Cost {
  double seconds = 0;
  int64_t bytes = 0;
  int steps = 0;
  auto operator<=>(const Cost&) const = default;
};

struct Node {
  Layout layout;
  Cost cost;
  int parent;  // index of the node before, -1 at the source
  Step step;   // how it was reached; meaningless at the source
};

// Uniform-cost search over layouts. Returns the nodes from src to dst, or none under the cap.
std::vector<Step> Search(const Layout& src, const Layout& dst, int64_t itemsize,
                         const PlanOptions& options, int64_t cap) {
  std::vector<Node> nodes;
  absl::flat_hash_map<Layout, int> best;  // layout -> its cheapest node
  using Entry = std::tuple<Cost, int>;    // ties: the node found first
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
  nodes.push_back({src, {}, -1, {StepKind::kLocal, {}, src, src}});
  best[src] = 0;
  queue.push({Cost(), 0});
  while (!queue.empty()) {
    const int at = std::get<1>(queue.top());
    queue.pop();
    if (best[nodes[at].layout] != at) continue;
    if (nodes[at].layout == dst) {
      std::vector<Step> steps;
      for (int i = at; nodes[i].parent >= 0; i = nodes[i].parent) steps.insert(steps.begin(), nodes[i].step);
      return steps;
    }
    const Layout here = nodes[at].layout;
    for (Transition& t : Transitions(here, dst)) {
      Step step = MakeStep(t.kind, std::move(t.axes), here, t.after, itemsize, options.cost_model);
      if (step.peak_bytes > cap) continue;
      Cost cost = nodes[at].cost;
      cost.seconds += step.seconds;
      cost.bytes += step.recv_bytes;
      ++cost.steps;
      const auto [it, fresh] = best.try_emplace(t.after, static_cast<int>(nodes.size()));
      if (!fresh) {
        if (nodes[it->second].cost <= cost) continue;
        it->second = static_cast<int>(nodes.size());
      }
      queue.push({cost, static_cast<int>(nodes.size())});
      nodes.push_back({std::move(t.after), cost, at, std::move(step)});
    }
  }
  return {};
}

int64_t PeakOf(const std::vector<Step>& steps) {
  int64_t peak = 0;
  for (const Step& s : steps) peak = std::max(peak, s.peak_bytes);
  return peak;
}

// The smallest cap under which a plan exists: the peaks that occur are few, so step down from a plan's own.
int64_t LeastPeak(const Layout& src, const Layout& dst, int64_t itemsize, const PlanOptions& options) {
  int64_t least = std::numeric_limits<int64_t>::max();
  while (true) {
    const std::vector<Step> steps = Search(src, dst, itemsize, options, least - 1);
    if (steps.empty()) return least;
    least = PeakOf(steps);
  }
}

}  // namespace

absl::string_view StepKindName(StepKind kind) {
  static constexpr std::array<const char*, 9> kNames = {
      "slice",      "local",   "all_gather", "reduce_scatter", "all_reduce",
      "all_to_all", "permute", "broadcast",  "exchange"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<RedistributionPlan> PlanRedistribution(const Layout& src, const Layout& dst,
                                                      int64_t itemsize, const PlanOptions& options) {
  if (itemsize < 1) return InvalidArgument("itemsize is ", itemsize, ", must be at least 1 byte");
  LINS_RETURN_IF_ERROR(CheckReachable(src, dst));
  RedistributionPlan plan{src, dst, itemsize, {}};
  plan.lower_bound_bytes = LowerBoundBytes(src, dst, itemsize);
  plan.peak_bytes = src.MaxLocalNumel() * itemsize;
  if (src == dst) return plan;
  const int64_t cap = options.max_peak_bytes.value_or(std::numeric_limits<int64_t>::max());
  plan.steps = Search(src, dst, itemsize, options, cap);
  if (plan.steps.empty()) {
    const int64_t least = LeastPeak(src, dst, itemsize, options);
    LINS_CHECK(least != std::numeric_limits<int64_t>::max(), "no way from ", Describe(src), " to ",
               dst.ToString());
    return InvalidArgument("max_peak_bytes=", cap, " is too small for ", src.ToString(), " -> ",
                           dst.ToString(), " of ", ShapeToString(src.shape()),
                           ": the least possible is ", least);
  }
  for (int64_t rank = 0; rank < src.mesh().size(); ++rank) {
    int64_t received = 0;
    for (const Step& s : plan.steps) received += RecvBytes(s, rank, itemsize);
    plan.recv_bytes = std::max(plan.recv_bytes, received);
  }
  for (const Step& s : plan.steps) plan.seconds += s.seconds;
  plan.peak_bytes = std::max(plan.peak_bytes, PeakOf(plan.steps));
  return plan;
}

absl::StatusOr<const RedistributionPlan*> CachedPlan(const Layout& src, const Layout& dst,
                                                     int64_t itemsize) {
  using Key = std::tuple<Layout, Layout, int64_t>;
  static auto* mutex = new std::mutex;
  static auto* cache = new absl::flat_hash_map<Key, std::unique_ptr<const RedistributionPlan>>;
  Key key(src, dst, itemsize);
  {
    std::lock_guard lock(*mutex);
    if (auto it = cache->find(key); it != cache->end()) return it->second.get();
  }
  LINS_ASSIGN_OR_RETURN(RedistributionPlan plan, PlanRedistribution(src, dst, itemsize));
  std::lock_guard lock(*mutex);
  auto& slot = (*cache)[std::move(key)];
  if (!slot) slot = std::make_unique<const RedistributionPlan>(std::move(plan));
  return slot.get();
}

std::string RedistributionPlan::ToString() const {
  std::string out = absl::StrCat(src.ToString(), " -> ", dst.ToString(), " of ",
                                 ShapeToString(src.shape()), " on ", src.mesh().ToString(), "\n");
  for (const Step& s : steps) {
    absl::StrAppendFormat(&out, "  %-14s over (%s): %s -> %s, receives %d bytes, peak %d",
                          std::string(StepKindName(s.kind)), src.mesh().AxesToString(s.axes),
                          s.before.ToString(), s.after.ToString(), s.recv_bytes, s.peak_bytes);
    if (s.seconds > 0) absl::StrAppendFormat(&out, ", %.3g s", s.seconds);
    absl::StrAppend(&out, "\n");
  }
  if (steps.empty()) absl::StrAppend(&out, "  nothing to do\n");
  absl::StrAppendFormat(&out, "  receives %d bytes, lower bound %d, peak %d", recv_bytes,
                        lower_bound_bytes, peak_bytes);
  return out;
}

}  // namespace lins
