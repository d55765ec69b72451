// A* over (split, pending reductions). A label is a way to reach such a state: what each rank has
// received on it, its steps and group sizes. The priority of a label is the least worst rank any
// continuation can end with (Bound), so the first label that leaves the queue at the destination is
// a cheapest one; labels that another label of their state equals or beats on every rank are
// dropped.
//
// Without a cost model and a cap, two moves (steps that leave pending reductions alone) in a row
// are never better than one exchange, rank by rank; the search then takes moves only before
// reductions and at the end.
#include "placement/search.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "placement/rank_math.h"
#include "placement/step_costs.h"

namespace lins {
namespace {

using Pending = PlanSpace::Pending;

struct Label {
  int split, pending, parent;
  Edge edge;
  int steps;       // kOver more for each layout on the way larger than both ends
  int64_t groups;  // sizes of the groups of all steps that communicate
  double seconds;  // or the highest peak so far
  int64_t bytes;   // in elements: the bound on the worst rank, or the sum of the steps' worst ranks
  const int64_t* received;
  int64_t total = 0;    // the sum of them
  bool beaten = false;  // by a label found later
};

class Search {
 public:
  Search(PlanSpace& space, const SearchOptions& options)
      : s_(space),
        options_(options),
        costs_(space, options),
        bound_(space),
        own_bound_(space, true),
        n_(space.ranks()),
        scalar_(options.cost_model || options.least_peak),
        capped_(options.max_peak != std::numeric_limits<int64_t>::max()),
        compose_(!scalar_ && !capped_),
        larger_(std::max(space.split(space.src()).most, space.split(space.dst()).most)),
        limit_(space.split(space.src()).most + space.split(space.dst()).most),
        counts_(scalar_ ? 0 : n_) {}

  SearchResult Run() {
    const int start = PendingId(s_.src_pending());
    goal_ = PendingId(s_.dst_pending());
    if (s_.src() == s_.dst() && start == goal_) return ToSteps(s_, costs_, options_, {});
    if (const Edge direct = compose_ ? Direct() : Edge(); direct.kind != EdgeKind::kNone) {
      return ToSteps(s_, costs_, options_, {{direct, s_.dst(), s_.dst_pending()}});
    }
    edge_.resize(counts_);
    sum_.resize(counts_);
    zero_.resize(counts_, 0);
    zeros_ = zero_.data();
    for (size_t op = 0; op < s_.ops().size(); ++op) {
      only_sums_ &= s_.ops()[op] == ReduceOp::kSum || s_.dst_pending()[op] == 0;
    }
    labels_.push_back({s_.src(), start, -1, {}, 0, 0, 0, 0, zeros_});
    s_.All();
    if (options_.cost_model) last_ = LastStep();
    At(s_.src(), start).push_back({0, 0, 0});
    queue_.push({0, 0, 0, 0, 0});
    while (!queue_.empty()) {
      const int at = std::get<4>(queue_.top());
      queue_.pop();
      if (labels_[at].beaten) continue;
      if (labels_[at].split == s_.dst() && labels_[at].pending == goal_) return Trace(at);
      if (Late(labels_[at].seconds)) continue;
      Expand(at);
    }
    return {};
  }

 private:
  static constexpr int kOver = 1000;
  // A label of a state, with what tells most labels apart at a glance: what all ranks and the worst
  // rank have received.
  struct Known {
    int64_t total, worst;
    int label;
  };
  using Entry = std::tuple<double, int64_t, int, int64_t, int>;

  int PendingId(const Pending& p) {
    const auto it = std::find(pendings_.begin(), pendings_.end(), p);
    if (it != pendings_.end()) return static_cast<int>(it - pendings_.begin());
    pendings_.push_back(p);
    return static_cast<int>(pendings_.size()) - 1;
  }

  absl::InlinedVector<Known, 1>& At(int split, int pending) {
    if (states_.size() <= static_cast<size_t>(pending)) states_.resize(pending + 1);
    auto& of_pending = states_[pending];
    if (of_pending.size() <= static_cast<size_t>(split)) of_pending.resize(s_.splits());
    return of_pending[split];
  }

  // A single step that nothing can beat: between complete layouts, or where it meets the bound.
  Edge Direct() {
    const int64_t least = bound_.AtLeast(nullptr, s_.src(), s_.src_pending());
    Edge edge{EdgeKind::kMove, 0};
    for (size_t i = 0; i < s_.ops().size(); ++i) {
      const AxisMask from = s_.src_pending()[i], to = s_.dst_pending()[i];
      if (from == to) continue;
      if ((to & ~from) || edge.axes) return {};  // one begins, or a second one ends
      edge.axes = from & ~to;
    }
    if (edge.axes && s_.src() == s_.dst()) {
      edge.kind = EdgeKind::kReduce;
    } else if (edge.axes) {
      edge.kind = EdgeKind::kScatter;
      const AxisMask added = s_.split(s_.dst()).covers ^ s_.split(s_.src()).covers;
      if (!s_.Extends(s_.src(), s_.dst()) || added != edge.axes) return {};
    }
    return costs_.Worst(edge, s_.src(), s_.dst()) == least ? edge : Edge();
  }

  // Seconds that the step into the destination takes at least, whatever precedes it. Claimed where
  // All() has every split that a plan may pass through.
  double LastStep() {
    const bool begins = goal_ != PendingId(Pending(s_.ops().size(), 0));  // for free
    if (begins || !s_.even_line() || s_.All().size() >= PlanSpace::kManySplits) return 0;
    const int dst = s_.dst();
    double least = std::numeric_limits<double>::infinity();
    const auto step = [&](const Edge& edge, int from) {
      least = std::min(least, costs_.Seconds(edge, from, dst, costs_.Worst(edge, from, dst)));
    };
    AxisMask all = 0;
    for (int from : s_.All()) {
      if (from == dst) continue;
      least = std::min(least, costs_.MoveCost(from, dst).seconds);
      const AxisMask added = s_.split(dst).covers & ~s_.split(from).covers;
      all |= s_.split(from).covers;
      if (!s_.ops().empty() && added && s_.Extends(from, dst)) {
        step({EdgeKind::kScatter, added}, from);
      }
    }
    all &= s_.ops().empty() ? 0 : ~s_.split(dst).covers;
    for (AxisMask a = all; a; a = (a - 1) & all) step({EdgeKind::kReduce, a}, dst);
    return least * (1 - 1e-12);  // sums of seconds are rounded
  }

  // A way that has taken so long and is not at the destination ends after the best one so far.
  bool Late(double seconds) const { return seconds + last_ > std::get<0>(best_); }

  void Expand(int at) {
    const int split = labels_[at].split, pending = labels_[at].pending;
    if (pending == goal_) {
      Move(at, s_.dst());
      if (compose_ && !AnyReducible(pending)) return;
    }
    AxisMask used = 0;
    for (AxisMask m : pendings_[pending]) used |= m;
    used = s_.BlockedBy(used);
    for (size_t op = 0; op < s_.ops().size(); ++op) {
      AxisMask able = pendings_[pending][op];
      if (!CanBegin(s_.ops()[op])) able &= ~s_.dst_pending()[op];
      if (able) {
        for (const auto& [to, axes] : Extensions(split, able)) Scatter(at, op, to, axes);
        for (AxisMask a = able; a; a = (a - 1) & able) Reduce(at, op, a);
      }
      if (!CanBegin(s_.ops()[op])) continue;
      AxisMask want = s_.dst_pending()[op];
      if (s_.ops()[op] == ReduceOp::kSum) want |= s_.split(split).covers;
      want &= ~used;
      for (AxisMask b = want; b; b = (b - 1) & want) Begin(at, op, b);
    }
    if (compose_ && labels_[at].edge.kind == EdgeKind::kMove) return;
    for (int to : s_.All()) {
      const PlanSpace::Split& y = s_.split(to);
      if (to != split && y.most <= limit_ && !(y.blocks & used)) Move(at, to);
    }
  }

  bool AnyReducible(int pending) const {
    for (size_t op = 0; op < s_.ops().size(); ++op) {
      if (pendings_[pending][op] && CanBegin(s_.ops()[op])) return true;
    }
    return false;
  }

  const std::vector<std::pair<int, AxisMask>>& Extensions(int split, AxisMask within) {
    const auto [it, fresh] = extensions_.try_emplace({split, within});
    if (fresh) it->second = s_.Extensions(split, within);
    return it->second;
  }

  void Move(int at, int to) {
    const int from = labels_[at].split;
    if (from == to) return;
    if (scalar_) {
      const StepCosts::Move& move = costs_.MoveCost(from, to);
      if (to != s_.dst() && Late(labels_[at].seconds + move.seconds)) return;
      Relax(at, {EdgeKind::kMove, move.axes}, to, labels_[at].pending, move.group, move.worst,
            move.seconds);
      return;
    }
    const bool any = costs_.Receive({EdgeKind::kMove, 0}, from, to, edge_.data());
    const AxisMask axes = any ? s_.Differing(from, to) : 0;
    Relax(at, {EdgeKind::kMove, axes}, to, labels_[at].pending, any ? s_.SizeOf(axes) : 0);
  }

  void Scatter(int at, size_t op, int to, AxisMask axes) {
    Take(at, {EdgeKind::kScatter, axes}, to, Without(labels_[at].pending, op, axes));
  }

  void Reduce(int at, size_t op, AxisMask axes) {
    const int split = labels_[at].split;
    Take(at, {EdgeKind::kReduce, axes}, split, Without(labels_[at].pending, op, axes));
  }

  void Take(int at, const Edge& edge, int to, int pending) {
    const int from = labels_[at].split;
    if (scalar_) {
      const int64_t worst = costs_.Worst(edge, from, to);
      const double seconds = options_.cost_model ? costs_.Seconds(edge, from, to, worst) : 0;
      Relax(at, edge, to, pending, s_.SizeOf(edge.axes), worst, seconds);
    } else {
      costs_.Receive(edge, from, to, edge_.data());
      Relax(at, edge, to, pending, s_.SizeOf(edge.axes));
    }
  }

  void Begin(int at, size_t op, AxisMask axes) {
    const int split = labels_[at].split;
    const PlanSpace::Split& x = s_.split(split);
    const int to = s_.ops()[op] == ReduceOp::kSum ? s_.Stripped(split, axes)
                   : (x.blocks & axes)            ? -1
                                                  : split;
    if (to < 0) return;
    Pending p = pendings_[labels_[at].pending];
    p[op] |= axes;
    const int pending = PendingId(p);
    std::fill(edge_.begin(), edge_.end(), 0);
    Relax(at, {EdgeKind::kBegin, axes}, to, pending, 0);
    if (s_.split(to).most <= limit_) return;
    overlap_.resize(n_);
    // Too large: every rank contributes no more than what it holds of a slice.
    AxisMask used = 0;
    for (AxisMask m : p) used |= m;
    used = s_.BlockedBy(used);
    for (int slice : s_.All()) {
      const PlanSpace::Split& y = s_.split(slice);
      if (y.most > limit_ || (y.blocks & used)) continue;
      s_.Overlap(to, slice, overlap_.data());
      const bool inside = std::equal(overlap_.begin(), overlap_.end(), y.held);
      if (inside) Relax(at, {EdgeKind::kBegin, axes}, slice, pending, 0);
    }
  }

  int Without(int pending, size_t op, AxisMask axes) {
    Pending p = pendings_[pending];
    p[op] &= ~axes;
    return PendingId(p);
  }

  int StepsLeft(int split, int pending) const {
    if (pending == goal_) return split != s_.dst();
    bool reduce = false, begin = false;
    for (size_t op = 0; op < s_.ops().size(); ++op) {
      const AxisMask have = pendings_[pending][op], want = s_.dst_pending()[op];
      reduce |= (have & ~want) != 0;
      begin |= (want & ~have) != 0;
    }
    return reduce + begin;
  }

  int64_t AtLeast(int split, int pending) {
    const int64_t least = bound_.AtLeast(sum_.data(), split, pendings_[pending]);
    if (only_sums_) return least;
    return std::max(least, own_bound_.AtLeast(sum_.data(), split, pendings_[pending]));
  }

  // Enters the state that a step leads to. What it receives: with a single cost, `worst` and
  // `seconds`, otherwise edge_ for each rank.
  void Relax(int at, Edge edge, int to, int pending, int64_t group, int64_t worst = 0,
             double seconds = 0) {
    const Label& from = labels_[at];
    if (s_.split(to).most > limit_) return;
    if (capped_ && costs_.Peak(from.split, to) > options_.max_peak) return;
    const int steps = from.steps + 1 + (s_.split(to).most > larger_ ? kOver : 0);
    Label next{to, pending, at, edge, steps, from.groups + group, from.seconds, 0, zeros_};
    if (scalar_) {
      next.bytes = from.bytes + worst;
      next.seconds = options_.least_peak
                         ? std::max(next.seconds, static_cast<double>(costs_.Peak(from.split, to)))
                         : next.seconds + seconds;
    } else {
      next.total = Add(from.received, edge_.data(), sum_.data(), n_);
      next.received = sum_.data();
      next.bytes = std::max(from.bytes, AtLeast(to, pending));
    }
    const int left = StepsLeft(to, pending);
    const bool there = to == s_.dst() && pending == goal_;
    const double seconds_left = there ? 0 : last_;
    const auto total =
        std::tuple(next.seconds + seconds_left, next.bytes, next.steps + left, next.groups);
    if (total > best_) return;
    if (there) best_ = total;
    if (!scalar_) worst = *std::max_element(sum_.begin(), sum_.end());
    const auto below = [](const Known& a, const Known& b) {
      return a.total <= b.total && a.worst <= b.worst;
    };
    Known known{next.total, scalar_ ? 0 : worst, 0};
    auto& here = At(to, pending);
    for (const Known& other : here) {
      if (below(other, known) && Beats(labels_[other.label], next)) return;
    }
    here.erase(std::remove_if(here.begin(), here.end(),
                              [&](const Known& other) {
                                if (!below(known, other)) return false;
                                const bool beaten = Beats(next, labels_[other.label]);
                                labels_[other.label].beaten |= beaten;
                                return beaten;
                              }),
               here.end());
    if (!scalar_) {
      int64_t* kept = s_.vectors().New();
      std::copy(sum_.begin(), sum_.end(), kept);
      next.received = kept;
    }
    const int id = static_cast<int>(labels_.size());
    known.label = id;
    here.push_back(known);
    queue_.push({next.seconds, next.bytes, next.steps + left, next.groups, id});
    labels_.push_back(next);
  }

  bool Beats(const Label& a, const Label& b) {
    if (scalar_) {
      return std::tuple(a.seconds, a.bytes, a.steps, a.groups) <=
             std::tuple(b.seconds, b.bytes, b.steps, b.groups);
    }
    if (std::pair(a.steps, a.groups) > std::pair(b.steps, b.groups)) return false;
    // The rank that told the last two apart often does it again.
    if (a.received[apart_] > b.received[apart_]) return false;
    for (int64_t r = 0; r < n_; ++r) {
      if (a.received[r] > b.received[r]) {
        apart_ = r;
        return false;
      }
    }
    return true;
  }

  // The steps that led to a label.
  SearchResult Trace(int last) {
    std::vector<Hop> hops;
    for (int i = last; labels_[i].parent >= 0; i = labels_[i].parent) {
      hops.push_back({labels_[i].edge, labels_[i].split, pendings_[labels_[i].pending]});
    }
    std::reverse(hops.begin(), hops.end());
    return ToSteps(s_, costs_, options_, hops);
  }

  PlanSpace& s_;
  const SearchOptions& options_;
  StepCosts costs_;
  Bound bound_, own_bound_;
  const int64_t n_;
  const bool scalar_, capped_, compose_;
  const int64_t larger_;  // elements: layouts on the way that hold more are a last resort
  const int64_t limit_;   // and none holds more than this
  const int64_t counts_;  // numbers in a label: one a rank, or none
  int goal_ = 0;
  double last_ = 0;                                    // seconds that no last step undercuts
  bool only_sums_ = true;                              // among what the destination leaves pending
  std::tuple<double, int64_t, int, int64_t> best_ = {  // of the labels that reach the destination
      std::numeric_limits<double>::infinity(), 0, 0, 0};
  std::vector<Pending> pendings_;
  std::vector<Label> labels_;
  std::vector<std::vector<absl::InlinedVector<Known, 1>>> states_;  // labels, [pending][split]
  absl::flat_hash_map<std::pair<int, AxisMask>, std::vector<std::pair<int, AxisMask>>> extensions_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue_;
  std::vector<int64_t> edge_, sum_, zero_, overlap_;
  const int64_t* zeros_ = nullptr;
  int64_t apart_ = 0;
};

}  // namespace

SearchResult SearchPlan(PlanSpace& space, const SearchOptions& options) {
  return Search(space, options).Run();
}

}  // namespace lins
