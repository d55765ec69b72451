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
#include "mesh/error.h"

namespace lins {
namespace {

using Pending = PlanSpace::Pending;

enum class EdgeKind : uint8_t { kNone, kMove, kScatter, kReduce, kBegin };
struct Edge {
  EdgeKind kind = EdgeKind::kNone;
  AxisMask axes = 0;
};

struct Label {
  int split, pending, parent;
  Edge edge;
  int steps;       // kOver more for each layout on the way larger than both ends
  int64_t groups;  // sizes of the groups of all steps that communicate
  double seconds;  // or the highest peak so far
  int64_t bytes;   // in elements: the bound on the worst rank, or the sum of the steps' worst ranks
  const int64_t* received;
  bool beaten = false;  // by a label found later
};

class Search {
 public:
  Search(PlanSpace& space, const SearchOptions& options)
      : s_(space),
        options_(options),
        bound_(space),
        own_bound_(space, true),
        n_(space.ranks()),
        scalar_(options.cost_model || options.least_peak),
        capped_(options.max_peak != std::numeric_limits<int64_t>::max()),
        compose_(!scalar_ && !capped_),
        larger_(std::max(space.split(space.src()).most, space.split(space.dst()).most)),
        limit_(space.split(space.src()).most + space.split(space.dst()).most),
        edge_(n_),
        sum_(n_),
        zero_(n_, 0) {}

  SearchResult Run() {
    const int start = PendingId(s_.src_pending());
    goal_ = PendingId(s_.dst_pending());
    zeros_ = zero_.data();
    for (size_t op = 0; op < s_.ops().size(); ++op) {
      only_sums_ &= s_.ops()[op] == ReduceOp::kSum || s_.dst_pending()[op] == 0;
    }
    labels_.push_back({s_.src(), start, -1, {}, 0, 0, 0, 0, zeros_});
    if (s_.src() == s_.dst() && start == goal_) return Trace(0);
    if (compose_) {
      const int direct = Direct();
      if (direct > 0) return Trace(direct);
      labels_.resize(1);
      states_.clear();
      queue_ = {};
    }
    s_.All();
    At(s_.src(), start).push_back(0);
    queue_.push({0, 0, 0, 0, 0});
    while (!queue_.empty()) {
      const int at = std::get<4>(queue_.top());
      queue_.pop();
      if (labels_[at].beaten) continue;
      if (labels_[at].split == s_.dst() && labels_[at].pending == goal_) return Trace(at);
      Expand(at);
    }
    return {};
  }

 private:
  static constexpr int kOver = 1000;
  using Entry = std::tuple<double, int64_t, int, int64_t, int>;

  int PendingId(const Pending& p) {
    const auto it = std::find(pendings_.begin(), pendings_.end(), p);
    if (it != pendings_.end()) return static_cast<int>(it - pendings_.begin());
    pendings_.push_back(p);
    return static_cast<int>(pendings_.size()) - 1;
  }

  absl::InlinedVector<int, 2>& At(int split, int pending) {
    return states_[static_cast<int64_t>(split) << 20 | pending];
  }

  // A single step that nothing can beat: between complete layouts, or where it meets the bound.
  int Direct() {
    const int64_t least = bound_.AtLeast(nullptr, s_.src(), s_.src_pending());
    AxisMask reduced = 0;
    size_t op = 0;
    int changes = 0;
    for (size_t i = 0; i < s_.ops().size(); ++i) {
      const AxisMask from = s_.src_pending()[i], to = s_.dst_pending()[i];
      if (from == to) continue;
      if (to & ~from) return -1;
      reduced = from & ~to;
      op = i;
      ++changes;
    }
    if (changes > 1) return -1;
    if (changes == 0) {
      Move(0, s_.dst());
    } else if (s_.src() == s_.dst()) {
      Reduce(0, op, reduced);
    } else if (s_.Extends(s_.src(), s_.dst()) &&
               (s_.split(s_.dst()).covers ^ s_.split(s_.src()).covers) == reduced) {
      Scatter(0, op, s_.dst(), reduced);
    }
    return labels_.size() == 2 && labels_[1].bytes == least ? 1 : -1;
  }

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
    Receive(EdgeKind::kMove, 0, from, to);
    const bool any = std::any_of(edge_.begin(), edge_.end(), [](int64_t n) { return n != 0; });
    const AxisMask axes = any ? s_.Differing(from, to) : 0;
    Relax(at, {EdgeKind::kMove, axes}, to, labels_[at].pending, any ? s_.SizeOf(axes) : 0);
  }

  void Scatter(int at, size_t op, int to, AxisMask axes) {
    Receive(EdgeKind::kScatter, axes, labels_[at].split, to);
    Relax(at, {EdgeKind::kScatter, axes}, to, Without(labels_[at].pending, op, axes),
          s_.SizeOf(axes));
  }

  void Reduce(int at, size_t op, AxisMask axes) {
    const int split = labels_[at].split;
    Receive(EdgeKind::kReduce, axes, split, split);
    Relax(at, {EdgeKind::kReduce, axes}, split, Without(labels_[at].pending, op, axes),
          s_.SizeOf(axes));
  }

  // Fills edge_: what each rank receives in a step.
  void Receive(EdgeKind kind, AxisMask axes, int from, int to) {
    const int64_t k = s_.SizeOf(axes), *held = s_.split(to).held;
    if (kind == EdgeKind::kMove) {
      s_.Overlap(from, to, edge_.data());
      for (int64_t r = 0; r < n_; ++r) edge_[r] = held[r] - edge_[r];
    } else if (kind == EdgeKind::kScatter) {
      for (int64_t r = 0; r < n_; ++r) edge_[r] = (k - 1) * held[r];
    } else if (kind == EdgeKind::kReduce) {
      // A chunk of the buffer is reduced by each, then spread: both halves are straight.
      const std::vector<int64_t>& index = IndexIn(axes);
      for (int64_t r = 0; r < n_; ++r) {
        const Range own = Chunk({0, held[r]}, k, index[r]);
        edge_[r] = held[r] + (k - 2) * (own.second - own.first);
      }
    } else {
      std::fill(edge_.begin(), edge_.end(), 0);
    }
  }

  const std::vector<int64_t>& IndexIn(AxisMask axes) {
    std::vector<int64_t>& index = index_[axes];
    if (index.empty()) {
      index.resize(n_);
      s_.IndexIn(axes, index.data());
    }
    return index;
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
    // Too large: every rank contributes no more than what it holds of a slice.
    AxisMask used = 0;
    for (AxisMask m : p) used |= m;
    used = s_.BlockedBy(used);
    for (int slice : s_.All()) {
      const PlanSpace::Split& y = s_.split(slice);
      if (y.most > limit_ || (y.blocks & used)) continue;
      s_.Overlap(to, slice, edge_.data());
      const bool inside = std::equal(edge_.begin(), edge_.end(), y.held);
      std::fill(edge_.begin(), edge_.end(), 0);
      if (inside) Relax(at, {EdgeKind::kBegin, axes}, slice, pending, 0);
    }
  }

  int Without(int pending, size_t op, AxisMask axes) {
    Pending p = pendings_[pending];
    p[op] &= ~axes;
    return PendingId(p);
  }

  int64_t Peak(int from, int to) const {
    const int64_t *a = s_.split(from).held, *b = s_.split(to).held;
    int64_t peak = 0;
    for (int64_t r = 0; r < n_; ++r) peak = std::max(peak, a[r] + b[r]);
    return peak * options_.itemsize;
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

  // Enters the state that a step leads to; edge_ is what each rank receives in the step.
  void Relax(int at, Edge edge, int to, int pending, int64_t group) {
    const Label from = labels_[at];
    if (s_.split(to).most > limit_) return;
    if (capped_ && Peak(from.split, to) > options_.max_peak) return;
    const int steps = from.steps + 1 + (s_.split(to).most > larger_ ? kOver : 0);
    Label next{to, pending, at, edge, steps, from.groups + group, from.seconds, 0, zeros_};
    if (scalar_) {
      const int64_t worst = *std::max_element(edge_.begin(), edge_.end());
      next.bytes = from.bytes + worst;
      if (options_.least_peak) {
        next.seconds = std::max(next.seconds, static_cast<double>(Peak(from.split, to)));
      } else if (worst > 0) {
        const auto [kind, axes] = KindAndAxes(edge, from.split, to);
        next.seconds += Seconds(kind, axes, from.split, to);
      }
    } else {
      for (int64_t r = 0; r < n_; ++r) sum_[r] = from.received[r] + edge_[r];
      next.received = sum_.data();
      next.bytes = std::max(from.bytes, AtLeast(to, pending));
    }
    const int left = StepsLeft(to, pending);
    const auto total = std::tuple(next.seconds, next.bytes, next.steps + left, next.groups);
    if (total > best_) return;
    if (to == s_.dst() && pending == goal_) best_ = total;
    auto& here = At(to, pending);
    for (int other : here) {
      if (Beats(labels_[other], next)) return;
    }
    here.erase(std::remove_if(here.begin(), here.end(),
                              [&](int other) {
                                const bool beaten = Beats(next, labels_[other]);
                                labels_[other].beaten |= beaten;
                                return beaten;
                              }),
               here.end());
    if (!scalar_) {
      int64_t* kept = s_.vectors().New();
      std::copy(sum_.begin(), sum_.end(), kept);
      next.received = kept;
    }
    const int id = static_cast<int>(labels_.size());
    here.push_back(id);
    queue_.push({next.seconds, next.bytes, next.steps + left, next.groups, id});
    labels_.push_back(next);
  }

  bool Beats(const Label& a, const Label& b) const {
    if (scalar_) {
      return std::tuple(a.seconds, a.bytes, a.steps, a.groups) <=
             std::tuple(b.seconds, b.bytes, b.steps, b.groups);
    }
    if (std::pair(a.steps, a.groups) > std::pair(b.steps, b.groups)) return false;
    for (int64_t r = 0; r < n_; ++r) {
      if (a.received[r] > b.received[r]) return false;
    }
    return true;
  }

  std::pair<StepKind, Axes> KindAndAxes(const Edge& edge, int from, int to) const {
    switch (edge.kind) {
      case EdgeKind::kScatter:
        return {StepKind::kReduceScatter, s_.Added(from, to)};
      case EdgeKind::kReduce:
        return {StepKind::kAllReduce, s_.ToAxes(edge.axes)};
      case EdgeKind::kBegin: {
        // Axes that the split gives up apart from those it does not use: the executor tells them
        // apart.
        const AxisMask split = s_.split(from).covers & edge.axes;
        Axes axes = s_.ToAxes(split);
        for (const SubAxis& a : s_.ToAxes(edge.axes & ~split)) axes.push_back(a);
        return {StepKind::kLocal, split && (edge.axes & ~split) ? axes : s_.ToAxes(edge.axes)};
      }
      default: {
        const StepKind kind = s_.MoveKind(from, to, edge_.data());
        return {kind, s_.MoveAxes(kind, from, to)};
      }
    }
  }

  double Seconds(StepKind kind, const Axes& axes, int from, int to) {
    const int64_t bytes =
        StepVolume(kind, s_.split(from).most, s_.split(to).most) * options_.itemsize;
    const auto [gpus, nodes] = GpusAndNodes(s_.mesh(), axes);
    const auto [it, fresh] = seconds_.try_emplace({kind, bytes, gpus, nodes}, 0);
    if (fresh) it->second = options_.cost_model->Seconds(kind, bytes, gpus, nodes);
    return it->second;
  }

  // The steps that led to a label.
  SearchResult Trace(int last) {
    SearchResult out;
    out.found = true;
    out.received.assign(n_, 0);
    std::vector<int> chain;
    for (int i = last; labels_[i].parent >= 0; i = labels_[i].parent) chain.push_back(i);
    std::reverse(chain.begin(), chain.end());
    int from = 0;
    Layout before = s_.ToLayout(s_.src(), s_.src_pending());
    for (int i : chain) {
      const Label& label = labels_[i];
      const int x = labels_[from].split;
      Receive(label.edge.kind, label.edge.axes, x, label.split);
      auto [kind, axes] = KindAndAxes(label.edge, x, label.split);
      // A split may also come or go along axes of one rank: the step is that of the others.
      if (Mesh::GroupSize(axes) > 1) axes = WithoutSingles(axes);
      Layout after = s_.ToLayout(label.split, pendings_[label.pending]);
      Step step{kind, std::move(axes), before, after};
      const int64_t in = s_.split(x).most, to = s_.split(label.split).most;
      step.bytes = StepVolume(kind, in, to) * options_.itemsize;
      step.in_bytes = in * options_.itemsize;
      step.out_bytes = to * options_.itemsize;
      step.recv_bytes = *std::max_element(edge_.begin(), edge_.end()) * options_.itemsize;
      step.peak_bytes = Peak(x, label.split);
      if (options_.cost_model && step.recv_bytes > 0) {
        step.seconds = Seconds(kind, step.axes, x, label.split);
      }
      for (int64_t r = 0; r < n_; ++r) out.received[r] += edge_[r];
      out.steps.push_back(std::move(step));
      before = std::move(after);
      from = i;
    }
    return out;
  }

  PlanSpace& s_;
  const SearchOptions& options_;
  Bound bound_, own_bound_;
  const int64_t n_;
  const bool scalar_, capped_, compose_;
  const int64_t larger_;  // elements: layouts on the way that hold more are a last resort
  const int64_t limit_;   // and none holds more than this
  int goal_ = 0;
  bool only_sums_ = true;                              // among what the destination leaves pending
  std::tuple<double, int64_t, int, int64_t> best_ = {  // of the labels that reach the destination
      std::numeric_limits<double>::infinity(), 0, 0, 0};
  std::vector<Pending> pendings_;
  std::vector<Label> labels_;
  absl::flat_hash_map<int64_t, absl::InlinedVector<int, 2>> states_;
  absl::flat_hash_map<std::pair<int, AxisMask>, std::vector<std::pair<int, AxisMask>>> extensions_;
  absl::flat_hash_map<AxisMask, std::vector<int64_t>> index_;
  absl::flat_hash_map<std::tuple<StepKind, int64_t, int64_t, int64_t>, double> seconds_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue_;
  std::vector<int64_t> edge_, sum_, zero_;
  const int64_t* zeros_ = nullptr;
};

}  // namespace

SearchResult SearchPlan(PlanSpace& space, const SearchOptions& options) {
  return Search(space, options).Run();
}

}  // namespace lins
