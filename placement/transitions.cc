#include "placement/transitions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {
namespace {

template <typename Vector, typename Predicate>
void EraseIf(Vector& v, Predicate p) {
  v.erase(std::remove_if(v.begin(), v.end(), p), v.end());
}

const ShardTerm* FindShard(const Terms& t, int dim) {
  for (const ShardTerm& s : t.shards) {
    if (s.dim == dim) return &s;
  }
  return nullptr;
}

Axes PartialOver(const Terms& t, ReduceOp op) {
  for (const PartialTerm& p : t.partials) {
    if (p.op == op) return p.axes;
  }
  return {};
}

bool IsPrefix(const Axes& prefix, const Axes& of) {
  return prefix.size() <= of.size() && std::equal(prefix.begin(), prefix.end(), of.begin());
}

Axes Slice(const Axes& axes, size_t begin, size_t end) {
  return Axes(axes.begin() + begin, axes.begin() + end);
}

// Removes the pending reduction with op over `axes`, and over axes of size 1 that the target does not want.
void RemovePartial(const Mesh& mesh, Terms& t, ReduceOp op, const Axes& axes, const Terms& target) {
  const Axes stays = PartialOver(target, op);
  for (size_t i = 0; i < t.partials.size(); ++i) {
    if (t.partials[i].op != op) continue;
    Axes& rest = t.partials[i].axes;
    rest = Subtract(mesh, rest, axes);
    EraseIf(rest, [&](const SubAxis& a) { return a.size == 1 && !Contains(mesh, stays, {&a, 1}); });
    if (rest.empty()) t.partials.erase(t.partials.begin() + i);
    return;
  }
}

// A split that can be lengthened or shortened at its minor end: one S term, or F.
struct Split {
  Axes axes;
  int dim;  // -1: flat
};

void SetSplit(Terms& t, int dim, const Axes& axes, const std::optional<FlatTerm>& window) {
  if (dim < 0) {
    if (axes.empty()) {
      t.flat.reset();
    } else {
      const FlatTerm& w = t.flat ? *t.flat : *window;
      t.flat = FlatTerm{axes, w.offset, w.total};
    }
    return;
  }
  EraseIf(t.shards, [&](const ShardTerm& s) { return s.dim == dim; });
  if (!axes.empty()) t.shards.push_back({dim, axes});
}

std::vector<Split> Splits(const Terms& t) {
  std::vector<Split> out;
  for (const ShardTerm& s : t.shards) out.push_back({s.axes, s.dim});
  if (t.flat) out.push_back({t.flat->axes, -1});
  return out;
}

class Generator {
 public:
  Generator(const Layout& from, const Layout& target)
      : from_(from), target_(target), mesh_(from.mesh()), f_(from.terms()), t_(target.terms()) {}

  std::vector<Transition> Run() {
    Gathers();
    Growth();
    Reductions();
    Owners();
    BeginPartials();
    MovesBetweenDims();
    Exchange();
    return std::move(out_);
  }

 private:
  // A group of one rank keeps what it has.
  void Add(StepKind kind, Axes axes, Terms terms) {
    if (kind != StepKind::kLocal && Mesh::GroupSize(axes) == 1) kind = StepKind::kSlice;
    Layout after = from_.WithTerms(std::move(terms));
    if (!(after == from_)) out_.push_back({kind, std::move(axes), std::move(after)});
  }

  // S0(a,b) -> S0(a) or R; F likewise.
  void Gathers() {
    for (const Split& s : Splits(f_)) {
      for (size_t keep = 0; keep < s.axes.size(); ++keep) {
        Terms t = f_;
        SetSplit(t, s.dim, Slice(s.axes, 0, keep), {});
        Add(StepKind::kAllGather, Slice(s.axes, keep, s.axes.size()), std::move(t));
      }
    }
  }

  // What the present split of `dim` must be extended by to become the target's; empty if it cannot.
  Axes Missing(const Split& want) const {
    Axes have;
    if (want.dim < 0) {
      if (!f_.shards.empty() || f_.owned) return {};
      if (f_.flat && (f_.flat->offset != t_.flat->offset || f_.flat->total != t_.flat->total)) return {};
      if (f_.flat) have = f_.flat->axes;
    } else {
      if (f_.flat || f_.owned) return {};
      if (const ShardTerm* s = FindShard(f_, want.dim)) have = s->axes;
    }
    return IsPrefix(have, want.axes) ? Slice(want.axes, have.size(), want.axes.size()) : Axes{};
  }

  Terms Extended(const Split& want, const Axes& by) const {
    Terms t = f_;
    Axes axes;
    if (want.dim < 0 && f_.flat) axes = f_.flat->axes;
    if (const ShardTerm* s = FindShard(f_, want.dim)) axes = s->axes;
    axes.insert(axes.end(), by.begin(), by.end());
    SetSplit(t, want.dim, axes, t_.flat);
    return t;
  }

  // Splits that the target wants: by slicing what is replicated, by reduce-scatter of what is pending.
  void Growth() {
    const Axes used = [&] {
      Axes u = from_.SplitAxes();
      const Axes p = from_.PartialAxes();
      u.insert(u.end(), p.begin(), p.end());
      return u;
    }();
    const Axes free = Complement(mesh_, used);
    for (const Split& want : Splits(t_)) {
      const Axes missing = Missing(want);
      for (size_t n = 1; n <= missing.size(); ++n) {
        const Axes by = Slice(missing, 0, n);
        if (Contains(mesh_, free, by) || Mesh::GroupSize(by) == 1) {
          Axes both = used;
          both.insert(both.end(), by.begin(), by.end());
          if (mesh_.Validate(both).ok()) Add(StepKind::kSlice, by, Extended(want, by));
        }
        for (const PartialTerm& p : f_.partials) {
          if (!Contains(mesh_, p.axes, by)) continue;
          Terms t = Extended(want, by);
          RemovePartial(mesh_, t, p.op, by, t_);
          Add(StepKind::kReduceScatter, by, std::move(t));
        }
      }
    }
  }

  void Reductions() {
    for (const PartialTerm& p : f_.partials) {
      const Axes stays = PartialOver(t_, p.op);
      const Axes pending = Contains(mesh_, p.axes, stays) ? Subtract(mesh_, p.axes, stays) : p.axes;
      Axes unsplit = pending;
      for (const SubAxis& a : target_.SplitAxes()) {
        if (Contains(mesh_, unsplit, {&a, 1})) unsplit = Subtract(mesh_, unsplit, {&a, 1});
      }
      std::vector<Axes> choices = {pending};
      if (unsplit != pending) choices.push_back(unsplit);
      if (pending.size() > 1) {
        for (const SubAxis& a : pending) choices.push_back({a});
      }
      for (const Axes& axes : choices) {
        if (axes.empty()) continue;
        Terms t = f_;
        RemovePartial(mesh_, t, p.op, axes, t_);
        Add(StepKind::kAllReduce, axes, std::move(t));
      }
    }
  }

  void Owners() {
    if (f_.owned) {
      Terms t = f_;
      t.owned.reset();
      Add(StepKind::kBroadcast, f_.owned->axes, std::move(t));
    }
    if (!t_.owned || f_.owned || f_.flat || !f_.shards.empty()) return;
    const Axes& axes = t_.owned->axes;
    Terms t = f_;
    t.owned = t_.owned;
    for (const PartialTerm& p : f_.partials) {
      if (!Contains(mesh_, p.axes, axes)) continue;
      RemovePartial(mesh_, t, p.op, axes, t_);
      return Add(StepKind::kReduceScatter, axes, std::move(t));
    }
    Axes both = from_.PartialAxes();
    both.insert(both.end(), axes.begin(), axes.end());
    if (mesh_.Validate(both).ok()) Add(StepKind::kSlice, axes, std::move(t));
  }

  // R -> +op: one rank keeps the value of a sum, every rank that of avg, min and max.
  // S -> +sum: every rank contributes its shard, zero elsewhere.
  void BeginPartials() {
    for (const PartialTerm& p : t_.partials) {
      const Axes have = PartialOver(f_, p.op);
      if (!Contains(mesh_, p.axes, have)) continue;
      Axes begin = Subtract(mesh_, p.axes, have);
      if (begin.empty()) continue;
      Terms t = f_;
      if (p.op == ReduceOp::kSum) {
        for (const Split& s : Splits(f_)) {
          size_t keep = s.axes.size();
          while (keep > 0 && Contains(mesh_, begin, {&s.axes[keep - 1], 1})) --keep;
          if (keep < s.axes.size()) SetSplit(t, s.dim, Slice(s.axes, 0, keep), {});
        }
        if (t.owned && Contains(mesh_, begin, t.owned->axes)) t.owned.reset();
      }
      Axes used = from_.WithTerms(t).SplitAxes();
      const Axes partial = from_.PartialAxes();
      used.insert(used.end(), partial.begin(), partial.end());
      used.insert(used.end(), begin.begin(), begin.end());
      if (!mesh_.Validate(used).ok()) continue;
      t.partials.push_back({p.op, begin});
      Add(StepKind::kLocal, begin, std::move(t));
    }
  }

  // S0(a) -> S1(a), on the last axes of a split, towards the target's.
  void MovesBetweenDims() {
    for (const ShardTerm& s : f_.shards) {
      for (const Split& want : Splits(t_)) {
        if (want.dim < 0 || want.dim == s.dim) continue;
        const Axes missing = Missing(want);
        for (size_t n = 1; n <= std::min(missing.size(), s.axes.size()); ++n) {
          const Axes moved = Slice(s.axes, s.axes.size() - n, s.axes.size());
          if (!IsPrefix(moved, missing)) continue;
          Terms t = Extended(want, moved);
          SetSplit(t, s.dim, Slice(s.axes, 0, s.axes.size() - n), {});
          Add(StepKind::kAllToAll, moved, std::move(t));
        }
      }
    }
  }

  // Complete values (or equal pending reductions) from any split to the target's.
  void Exchange() {
    if (f_.partials != t_.partials) return;
    if (f_.shards == t_.shards && f_.flat == t_.flat && f_.owned == t_.owned) return;
    Axes axes;
    const auto add = [&](const Axes& list, size_t from) {
      for (size_t i = from; i < list.size(); ++i) {
        if (!Contains(mesh_, axes, {&list[i], 1})) {
          Axes both = axes;
          both.push_back(list[i]);
          // Parts of one axis cut in two ways: take the whole axis.
          const int whole = list[i].axis;
          if (!mesh_.Validate(both).ok()) {
            EraseIf(both, [&](const SubAxis& a) { return a.axis == whole; });
            both.push_back({whole, mesh_.shape()[whole], 1});
          }
          axes = Canonical(mesh_, both);
        }
      }
    };
    for (int dim = 0; dim < static_cast<int>(from_.shape().size()); ++dim) {
      const ShardTerm *a = FindShard(f_, dim), *b = FindShard(t_, dim);
      size_t common = 0;
      while (a && b && common < std::min(a->axes.size(), b->axes.size()) &&
             a->axes[common] == b->axes[common]) {
        ++common;
      }
      if (a) add(a->axes, common);
      if (b) add(b->axes, common);
    }
    for (const Terms* t : {&f_, &t_}) {
      if (t->flat) add(t->flat->axes, 0);
      if (t->owned) add(t->owned->axes, 0);
    }
    const StepKind kind = HoldsTarget()     ? StepKind::kSlice
                          : IsPermutation() ? StepKind::kPermute
                                            : StepKind::kExchange;
    Add(kind, axes, t_);
  }

  // Every rank has all that it shall have: `S0(x:2@2,x:2)` and `S0(x)` of four rows over four ranks.
  bool HoldsTarget() const {
    for (int64_t rank = 0; rank < mesh_.size(); ++rank) {
      if (OverlapElements(from_, rank, target_, rank) != target_.LocalNumel(rank)) return false;
    }
    return true;
  }

  // Equal splits over the same axes where each rank's new content is another rank's old one.
  bool IsPermutation() const {
    const Axes a = from_.SplitAxes(), b = target_.SplitAxes();
    if (Canonical(mesh_, a) != Canonical(mesh_, b)) return false;
    const int64_t k = Mesh::GroupSize(a);
    for (int64_t i = 0; i < k; ++i) {
      const Ranges want = target_.RangesOf(mesh_.Peer(b, 0, i));
      bool found = false;
      for (int64_t j = 0; j < k && !found; ++j) found = from_.RangesOf(mesh_.Peer(a, 0, j)) == want;
      if (!found) return false;
    }
    return true;
  }

  const Layout& from_;
  const Layout& target_;
  const Mesh& mesh_;
  const Terms& f_;
  const Terms& t_;
  std::vector<Transition> out_;
};

bool CanBegin(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kMin || op == ReduceOp::kMax;
}

}  // namespace

std::vector<Transition> Transitions(const Layout& from, const Layout& target) {
  return Generator(from, target).Run();
}

absl::Status CheckReachable(const Layout& src, const Layout& dst) {
  if (!(src.mesh() == dst.mesh())) {
    return InvalidArgument("cannot redistribute between meshes: ", src.mesh().ToString(), " and ",
                           dst.mesh().ToString());
  }
  if (src.shape() != dst.shape()) {
    return InvalidArgument("cannot redistribute shape ", ShapeToString(src.shape()), " to ",
                           ShapeToString(dst.shape()));
  }
  const Mesh& mesh = src.mesh();
  for (const PartialTerm& want : dst.terms().partials) {
    for (const PartialTerm& have : src.terms().partials) {
      if (have.op == want.op) continue;
      for (const SubAxis& a : want.axes) {
        for (const SubAxis& b : have.axes) {
          if (Overlap(a, b)) {
            return InvalidArgument("cannot turn ", src.ToString(), " into ", dst.ToString(),
                                   ": partial ", ReduceOpName(have.op), " is not partial ",
                                   ReduceOpName(want.op), "; redistribute to R first");
          }
        }
      }
    }
    if (!CanBegin(want.op) && !Contains(mesh, PartialOver(src.terms(), want.op), want.axes)) {
      return InvalidArgument("cannot turn ", src.ToString(), " into ", dst.ToString(), ": a partial ",
                             ReduceOpName(want.op), " cannot be made of complete values; legal are sum, ",
                             "avg, min and max");
    }
  }
  return absl::OkStatus();
}

}  // namespace lins
