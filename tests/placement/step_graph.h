// The planner's graph, written out: every layout of a small tensor and every step between two of
// them, made by rules on layouts alone. Slow and plain on purpose.
#pragma once

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "placement/redistribution.h"

namespace lins {

struct StepGraph {
  struct Edge {
    int to;
    std::vector<int64_t> received;  // bytes of each rank
    // A begun sum cut to a slice at once: only for wholes larger than the limit.
    int64_t through = -1;
    double seconds = 0;  // by the cost model
  };
  std::vector<Layout> layouts;
  std::vector<std::vector<Edge>> edges;

  // Over whole axes of a two-axis mesh; partials with `op`; owners as listed in `extra`.
  static StepGraph Create(const Shape& shape, const Mesh& mesh, ReduceOp op,
                          const std::vector<Layout>& extra, const CostModel* model = nullptr);

  struct Cost {
    int64_t bytes = -1;  // worst rank; -1: no way
    int steps = 0;
  };
  // By labels with one number a rank; no layout on the way may hold more than `limit` elements.
  Cost Cheapest(int from, int to, int64_t limit) const;
  // The least sum of seconds; infinite: no way.
  double LeastSeconds(int from, int to, int64_t limit) const;
  int Find(const Layout& l) const {
    return static_cast<int>(std::find(layouts.begin(), layouts.end(), l) - layouts.begin());
  }
};

namespace graph {

inline bool IsPrefix(const Axes& a, const Axes& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

inline Axes AxesOf(const Layout& l, int dim) {
  for (const ShardTerm& s : l.terms().shards) {
    if (s.dim == dim) return s.axes;
  }
  return {};
}

// `fine` is `coarse` with more axes at the minor ends; those axes, or none if it is not.
inline Axes Lengthened(const Layout& coarse, const Layout& fine) {
  const Terms &x = coarse.terms(), &y = fine.terms();
  const bool whole = coarse.SplitAxes().empty();
  const auto rest = [](const Axes& a, const Axes& b) {
    return Axes(b.begin() + a.size(), b.end());
  };
  if (y.owned) return whole ? y.owned->axes : Axes();
  if (y.flat) {
    if (whole) return y.flat->axes;
    if (!x.flat || x.flat->offset != y.flat->offset || x.flat->total != y.flat->total) return {};
    return IsPrefix(x.flat->axes, y.flat->axes) ? rest(x.flat->axes, y.flat->axes) : Axes();
  }
  if (x.owned || x.flat) return {};
  Axes out;
  for (int d = 0; d < static_cast<int>(coarse.shape().size()); ++d) {
    const Axes a = AxesOf(coarse, d), b = AxesOf(fine, d);
    if (!IsPrefix(a, b)) return {};
    for (const SubAxis& s : rest(a, b)) out.push_back(s);
  }
  return out;
}

inline Axes Pending(const Layout& l) { return Canonical(l.mesh(), l.PartialAxes()); }

// R -> +op over `begun`; for sums a split over some of them goes away too.
inline bool Begins(const Layout& x, const Layout& y, const Axes& begun, ReduceOp op) {
  if (x.terms().flat == y.terms().flat && x.terms().shards == y.terms().shards &&
      x.terms().owned == y.terms().owned) {
    return true;
  }
  if (op != ReduceOp::kSum) return false;
  const Axes gone = Lengthened(y, x);
  return !gone.empty() && Contains(x.mesh(), begun, gone);
}

inline void Insert(Axes& axes, const Axes& more) {
  for (const SubAxis& a : more) {
    if (std::find(axes.begin(), axes.end(), a) == axes.end()) axes.push_back(a);
  }
}

// The step that turns one split into another under the same pending reductions.
inline Step Move(const Layout& x, const Layout& y, int64_t itemsize, const CostModel* model) {
  const auto step = [&](StepKind kind, const Axes& axes) {
    return MakeStep(kind, axes, x, y, itemsize, model);
  };
  const Terms &s = x.terms(), &t = y.terms();
  if (s.owned && y.SplitAxes().empty()) return step(StepKind::kBroadcast, s.owned->axes);
  if (const Axes undone = Lengthened(y, x); !undone.empty() && !s.owned) {
    return step(StepKind::kAllGather, undone);
  }
  Axes differing;
  std::vector<Axes> lost, gained;
  if (s.flat && t.flat && s.flat->offset == t.flat->offset && s.flat->total == t.flat->total) {
    size_t common = 0;
    const Axes &p = s.flat->axes, &q = t.flat->axes;
    while (common < std::min(p.size(), q.size()) && p[common] == q[common]) ++common;
    Insert(differing, Axes(p.begin() + common, p.end()));
    Insert(differing, Axes(q.begin() + common, q.end()));
  } else if (x.IsFlatOrOwned() || y.IsFlatOrOwned()) {
    Insert(differing, x.SplitAxes());
    Insert(differing, y.SplitAxes());
  } else {
    bool prefixes = true;
    for (int d = 0; d < static_cast<int>(x.shape().size()); ++d) {
      const Axes p = AxesOf(x, d), q = AxesOf(y, d);
      if (p == q) continue;
      size_t common = 0;
      while (common < std::min(p.size(), q.size()) && p[common] == q[common]) ++common;
      const Axes less(p.begin() + common, p.end()), more(q.begin() + common, q.end());
      Insert(differing, less);
      Insert(differing, more);
      if (!less.empty()) lost.push_back(less);
      if (!more.empty()) gained.push_back(more);
      prefixes = prefixes && (less.empty() || more.empty());
    }
    const Step all_to_all = step(StepKind::kAllToAll, differing);
    if (prefixes && lost.size() == 1 && gained.size() == 1 && lost == gained &&
        all_to_all.recv_bytes > 0) {
      return all_to_all;
    }
  }
  return step(StepKind::kExchange, differing);  // slices receive nothing, and cost nothing
}

}  // namespace graph

inline StepGraph StepGraph::Create(const Shape& shape, const Mesh& mesh, ReduceOp op,
                                   const std::vector<Layout>& extra, const CostModel* model) {
  StepGraph graph;
  const SubAxis a = mesh.AllAxes()[0], b = mesh.AllAxes()[1];
  std::vector<Terms> splits(1);
  const int ndim = static_cast<int>(shape.size());
  const auto sharded = [](std::vector<std::pair<int, Axes>> parts) {
    Terms t;
    for (auto& [dim, axes] : parts) t.shards.push_back({dim, axes});
    return t;
  };
  for (int d = 0; d < ndim; ++d) {
    for (const Axes& axes : {Axes{a}, Axes{b}, Axes{a, b}, Axes{b, a}}) {
      splits.push_back(sharded({{d, axes}}));
    }
    for (int e = 0; e < ndim; ++e) {
      if (e != d) splits.push_back(sharded({{d, {a}}, {e, {b}}}));
    }
  }
  for (const Axes& axes : {Axes{a}, Axes{b}, Axes{a, b}, Axes{b, a}}) {
    for (int64_t k : {Mesh::GroupSize(axes), mesh.size()}) {
      Terms t;
      t.flat = FlatTerm{axes, 0, (Numel(shape) + k - 1) / k * k};
      splits.push_back(t);
    }
  }
  const auto add = [&graph](Layout l) {
    if (std::find(graph.layouts.begin(), graph.layouts.end(), l) == graph.layouts.end()) {
      graph.layouts.push_back(std::move(l));
    }
  };
  for (const Layout& l : extra) {
    if (l.terms().owned || l.terms().flat) {
      Terms t = l.terms();
      t.partials.clear();
      splits.push_back(t);
    }
  }
  // A reduction is on the way only where an end has one.
  std::vector<Axes> pendings = {{}};
  if (std::any_of(extra.begin(), extra.end(), [](const Layout& l) { return l.IsPartial(); })) {
    pendings = {{}, {a}, {b}, {a, b}};
  }
  for (const Terms& split : splits) {
    for (const Axes& pending : pendings) {
      Terms t = split;
      if (!pending.empty()) t.partials.push_back({op, pending});
      if (auto l = Layout::Create(t, shape, mesh); l.ok()) add(*std::move(l));
    }
  }
  const auto edge = [&](int to, const Step& step) {
    Edge out{to, {}, -1, step.seconds};
    for (int64_t r = 0; r < mesh.size(); ++r) out.received.push_back(RecvBytes(step, r, 4));
    return out;
  };
  const bool can_begin =
      op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kMin || op == ReduceOp::kMax;
  for (const Layout& x : graph.layouts) {
    auto& edges = graph.edges.emplace_back();
    const Axes px = graph::Pending(x);
    for (int i = 0; i < static_cast<int>(graph.layouts.size()); ++i) {
      const Layout& y = graph.layouts[i];
      const Axes py = graph::Pending(y);
      if (x == y) continue;
      if (px == py) {
        edges.push_back(edge(i, graph::Move(x, y, 4, model)));
      } else if (Contains(mesh, px, py)) {
        const Axes done = Subtract(mesh, px, py), more = graph::Lengthened(x, y);
        Terms t = y.terms();
        t.partials = x.terms().partials;
        if (t == x.terms()) {
          edges.push_back(edge(i, MakeStep(StepKind::kAllReduce, done, x, y, 4, model)));
        }
        if (!more.empty() && Canonical(mesh, more) == done) {
          edges.push_back(edge(i, MakeStep(StepKind::kReduceScatter, more, x, y, 4, model)));
        }
      } else if (Contains(mesh, py, px) && can_begin &&
                 graph::Begins(x, y, Subtract(mesh, py, px), op)) {
        edges.push_back({i, std::vector<int64_t>(mesh.size(), 0), -1, 0});
      }
    }
  }
  if (op != ReduceOp::kSum) return graph;
  for (auto& edges : graph.edges) {
    std::vector<Edge> cut;
    for (const Edge& e : edges) {
      const Layout& z = graph.layouts[e.to];
      const Layout& x = graph.layouts[&edges - graph.edges.data()];
      const Axes px = graph::Pending(x), pz = graph::Pending(z);
      if (px == pz || !Contains(mesh, pz, px)) continue;
      for (int i = 0; i < static_cast<int>(graph.layouts.size()); ++i) {
        const Layout& y = graph.layouts[i];
        bool slice = i != e.to && graph::Pending(y) == pz;
        for (int64_t r = 0; slice && r < mesh.size(); ++r) {
          slice = OverlapElements(z, r, y, r) == y.LocalNumel(r);
        }
        if (slice) cut.push_back({i, e.received, z.MaxLocalNumel(), 0});
      }
    }
    edges.insert(edges.end(), cut.begin(), cut.end());
  }
  return graph;
}

inline StepGraph::Cost StepGraph::Cheapest(int from, int to, int64_t limit) const {
  struct Label {
    std::vector<int64_t> received;
    int steps;
  };
  std::vector<std::vector<Label>> labels(layouts.size());
  std::vector<std::pair<int, Label>> open = {
      {from, {std::vector<int64_t>(layouts[from].mesh().size(), 0), 0}}};
  labels[from] = {open[0].second};
  const auto beats = [](const Label& a, const Label& b) {
    if (a.steps > b.steps) return false;
    for (size_t r = 0; r < a.received.size(); ++r) {
      if (a.received[r] > b.received[r]) return false;
    }
    return true;
  };
  // Breadth first until nothing new is worth keeping.
  for (size_t next = 0; next < open.size(); ++next) {
    const auto [at, label] = open[next];
    for (const Edge& e : edges[at]) {
      if (layouts[e.to].MaxLocalNumel() > limit) continue;
      if (e.through >= 0 &&
          e.through <= layouts[from].MaxLocalNumel() + layouts[to].MaxLocalNumel())
        continue;
      Label l{label.received, label.steps + 1};
      for (size_t r = 0; r < l.received.size(); ++r) l.received[r] += e.received[r];
      auto& here = labels[e.to];
      const auto worst = [](const Label& x) {
        return std::pair(*std::max_element(x.received.begin(), x.received.end()), x.steps);
      };
      // No label beyond one that has arrived can help.
      if (std::any_of(labels[to].begin(), labels[to].end(),
                      [&](const Label& x) { return worst(x) <= worst(l); })) {
        continue;
      }
      if (std::any_of(here.begin(), here.end(), [&](const Label& x) { return beats(x, l); }))
        continue;
      std::erase_if(here, [&](const Label& x) { return beats(l, x); });
      here.push_back(l);
      open.emplace_back(e.to, std::move(l));
    }
  }
  Cost best;
  for (const Label& l : labels[to]) {
    const int64_t worst = *std::max_element(l.received.begin(), l.received.end());
    if (best.bytes < 0 || std::tuple(worst, l.steps) < std::tuple(best.bytes, best.steps)) {
      best = {worst, l.steps};
    }
  }
  return best;
}

inline double StepGraph::LeastSeconds(int from, int to, int64_t limit) const {
  std::vector<double> least(layouts.size(), std::numeric_limits<double>::infinity());
  least[from] = 0;
  const int64_t ends = layouts[from].MaxLocalNumel() + layouts[to].MaxLocalNumel();
  for (bool changed = true; changed;) {  // Bellman and Ford
    changed = false;
    for (size_t at = 0; at < layouts.size(); ++at) {
      for (const Edge& e : edges[at]) {
        if (layouts[e.to].MaxLocalNumel() > limit || (e.through >= 0 && e.through <= ends))
          continue;
        if (least[at] + e.seconds < least[e.to]) {
          least[e.to] = least[at] + e.seconds;
          changed = true;
        }
      }
    }
  }
  return least[to];
}

}  // namespace lins
