// What turns one split into another: common elements, extensions, kinds and axes of steps.
#include <algorithm>
#include <bit>

#include "absl/container/flat_hash_set.h"
#include "mesh/error.h"
#include "placement/space.h"

namespace lins {
namespace {

// Lists packed one element a byte, from the lowest on.
bool IsPrefix(uint64_t a, uint64_t b) {
  const uint64_t differ = a ^ b;
  return differ == 0 || a >> (std::countr_zero(differ) & ~7) == 0;
}

}  // namespace

int64_t PlanSpace::EvenOverlap(int x_id, int y_id) const {
  const Split &x = *splits_[x_id], &y = *splits_[y_id];
  const bool nested = IsPrefix(x.line, y.line) || IsPrefix(y.line, x.line);
  return nested ? std::min(x.most, y.most) : -1;
}

std::pair<StepKind, AxisMask> PlanSpace::LineMove(int x_id, int y_id) const {
  const Split &x = *splits_[x_id], &y = *splits_[y_id];
  if (IsPrefix(x.line, y.line)) return {StepKind::kSlice, 0};
  if (IsPrefix(y.path, x.path) && (x.form == y.form || y.path == 0)) {
    return {StepKind::kAllGather, x.covers & ~y.covers};
  }
  if (x.form != y.form) return {StepKind::kExchange, x.covers | y.covers};
  AxisMask common = 0;
  const int same = std::countr_zero(x.path ^ y.path) & ~7;
  for (int i = 0; i < same; i += 8) common |= items_[(x.path >> i & 0xff) - 1].covers;
  return {x.covers == y.covers ? StepKind::kPermute : StepKind::kExchange,
          (x.covers | y.covers) & ~common};
}

std::vector<std::pair<int, AxisMask>> PlanSpace::Extensions(int id, AxisMask within) {
  std::vector<std::pair<int, AxisMask>> out;
  const int ndim = static_cast<int>(src_.shape().size());
  const Split base = *splits_[id];
  const bool whole = IsWhole(base);
  const auto fits = [&](int item, AxisMask left) {
    const AxisMask covers = items_[item].covers;
    return items_[item].axis.size > 1 && covers != 0 && (covers & ~left) == 0;
  };
  if (base.form == Form::kBox) {
    absl::InlinedVector<int, 4> nodes = base.nodes;
    const auto extend = [&](auto&& self, int dim, AxisMask left) -> void {
      if (left != within) out.emplace_back(Intern(Form::kBox, 0, nodes), within & ~left);
      for (; dim < ndim; ++dim) {
        for (size_t i = 0; i < items_.size(); ++i) {
          if (!fits(static_cast<int>(i), left)) continue;
          const int before = nodes[dim];
          nodes[dim] = Child(before, static_cast<int>(i));
          self(self, dim, left & ~items_[i].covers);
          nodes[dim] = before;
        }
      }
    };
    extend(extend, 0, within);
  }
  if (base.form == Form::kFlat || whole) {
    const auto extend = [&](auto&& self, int window, int node, AxisMask left) -> void {
      for (size_t i = 0; i < items_.size(); ++i) {
        if (!fits(static_cast<int>(i), left)) continue;
        const int child = Child(node, static_cast<int>(i));
        int64_t k = 1;
        for (int item : Items(child)) k *= items_[item].axis.size;
        const AxisMask rest = left & ~items_[i].covers;
        if (windows_[window].second % k == 0) {
          out.emplace_back(Intern(Form::kFlat, window, {child}), within & ~rest);
        }
        self(self, window, child, rest);
      }
    };
    for (int w = 0; w < static_cast<int>(windows_.size()); ++w) {
      if (whole || w == base.variant) extend(extend, w, whole ? ndim : base.nodes[0], within);
    }
  }
  if (whole) {
    for (size_t o = 0; o < owners_.size(); ++o) {
      const int owned = Intern(Form::kOwned, static_cast<int>(o), {});
      const AxisMask covers = splits_[owned]->covers;
      if (covers != 0 && (covers & ~within) == 0) out.emplace_back(owned, covers);
    }
  }
  return out;
}

bool PlanSpace::Extends(int from, int to) const {
  const Split &x = *splits_[from], &y = *splits_[to];
  if (x.form != y.form) return IsWhole(x);
  if (x.variant != y.variant || x.form == Form::kOwned) return false;
  for (size_t d = 0; d < x.nodes.size(); ++d) {
    if (CommonAncestor(x.nodes[d], y.nodes[d]) != x.nodes[d]) return false;
  }
  return true;
}

// Only S terms over groups of one, if any.
bool PlanSpace::IsWhole(const Split& s) const {
  return s.form == Form::kBox && s.covers == 0 && s.blocks == 0;
}

int PlanSpace::Stripped(int id, AxisMask strip) {
  const Split base = *splits_[id];
  if (base.form == Form::kOwned) {
    if (!(base.blocks & strip)) return id;
    return (base.blocks & ~strip) ? -1 : FromTerms(Terms());
  }
  absl::InlinedVector<int, 4> nodes = base.nodes;
  for (int& node : nodes) {
    while (nodes_[node].parent >= 0) {
      const AxisMask covers = items_[nodes_[node].item].covers;
      if (covers == 0 || (covers & ~strip)) break;
      node = nodes_[node].parent;
    }
    for (int n = node; nodes_[n].parent >= 0; n = nodes_[n].parent) {
      if (items_[nodes_[n].item].blocks & strip) return -1;
    }
  }
  if (base.form == Form::kFlat && nodes_[nodes[0]].parent < 0) return FromTerms(Terms());
  return Intern(base.form, base.variant, std::move(nodes));
}

int PlanSpace::CommonAncestor(int a, int b) const {
  while (a != b) {
    int& deeper = nodes_[a].depth >= nodes_[b].depth ? a : b;
    deeper = nodes_[deeper].parent;
  }
  return a;
}

AxisMask PlanSpace::Differing(int x_id, int y_id) const {
  const Split &x = *splits_[x_id], &y = *splits_[y_id];
  if (x.form != y.form || x.variant != y.variant) {
    return x.blocks | y.blocks;
  }
  AxisMask out = 0;
  for (size_t d = 0; d < x.nodes.size(); ++d) {
    const int common = CommonAncestor(x.nodes[d], y.nodes[d]);
    if (chains_) {
      const AxisMask either = nodes_[x.nodes[d]].covers | nodes_[y.nodes[d]].covers;
      out |= either & ~nodes_[common].covers;
      continue;
    }
    for (int node : {x.nodes[d], y.nodes[d]}) {
      for (int i : Items(node, common)) out |= items_[i].blocks;
    }
  }
  return out;
}

Axes PlanSpace::Added(int from_id, int to_id) const {
  const Split &from = *splits_[from_id], &to = *splits_[to_id];
  if (to.form == Form::kOwned) return owners_[to.variant].axes;
  Axes out;
  for (size_t d = 0; d < to.nodes.size(); ++d) {
    const int start = from.form == to.form ? from.nodes[d] : -1;
    for (int i : Items(to.nodes[d], start)) out.push_back(items_[i].axis);
  }
  return out;
}

Axes PlanSpace::ToAxes(AxisMask atoms) const {
  // An axis with parts that do not fit into each other counts as a whole.
  absl::InlinedVector<bool, 4> clash(mesh().ndim(), false);
  for (size_t i = 0; i < atoms_; ++i) {
    if (!(atoms >> i & 1)) continue;
    clash[items_[i].axis.axis] |= (items_[i].blocks & atoms) != (AxisMask{1} << i);
  }
  Axes out;
  for (int axis = 0; axis < mesh().ndim(); ++axis) {
    if (clash[axis]) out.push_back({axis, mesh().shape()[axis], 1});
  }
  for (size_t i = 0; i < atoms_; ++i) {
    if ((atoms >> i & 1) && !clash[items_[i].axis.axis]) out.push_back(items_[i].axis);
  }
  return Canonical(mesh(), out);
}

bool PlanSpace::IsPermutation(const Split& x, const Split& y, const int64_t* received) const {
  if (x.form != y.form || x.covers != y.covers || x.blocks != y.blocks) return false;
  for (int64_t r = 0; r < ranks_; ++r) {
    if (received[r] != 0 && received[r] != y.held[r]) return false;
  }
  const auto ranges = [this](const Split& s, int64_t r) {
    absl::InlinedVector<int64_t, 8> out;
    if (s.form != Form::kBox) return absl::InlinedVector<int64_t, 8>{s.begin[r], s.end[r]};
    for (int n : s.nodes) {
      out.push_back(nodes_[n].begin[r]);
      out.push_back(nodes_[n].end[r]);
    }
    return out;
  };
  absl::flat_hash_set<absl::InlinedVector<int64_t, 8>> held;
  for (int64_t r = 0; r < ranks_; ++r) held.insert(ranges(x, r));
  for (int64_t r = 0; r < ranks_; ++r) {
    if (y.held[r] > 0 && !held.contains(ranges(y, r))) return false;
  }
  return true;
}

StepKind PlanSpace::MoveKind(int x_id, int y_id, const int64_t* received) const {
  const Split &x = *splits_[x_id], &y = *splits_[y_id];
  const bool nothing = std::all_of(received, received + ranks_, [](int64_t n) { return n == 0; });
  if (x.form == Form::kOwned && IsWhole(y) && x.covers != 0) return StepKind::kBroadcast;
  bool prefix = x.form == y.form && x.variant == y.variant && x.form != Form::kOwned;
  int shorter = -1, longer = -1, changes = 0;  // dimensions that lose or gain axes
  if (prefix) {
    for (size_t d = 0; d < x.nodes.size(); ++d) {
      if (x.nodes[d] == y.nodes[d]) continue;
      const int common = CommonAncestor(x.nodes[d], y.nodes[d]);
      ++changes;
      if (common == y.nodes[d]) {
        shorter = static_cast<int>(d);
      } else {
        prefix = false;
        if (common == x.nodes[d]) longer = static_cast<int>(d);
      }
    }
  } else if (x.form == Form::kFlat && IsWhole(y)) {
    prefix = true;
  }
  if (prefix && x.covers != y.covers) return StepKind::kAllGather;
  if (nothing) return StepKind::kSlice;
  if (x.form == Form::kBox && changes == 2 && shorter >= 0 && longer >= 0 &&
      Items(x.nodes[shorter], y.nodes[shorter]) == Items(y.nodes[longer], x.nodes[longer])) {
    return StepKind::kAllToAll;
  }
  return IsPermutation(x, y, received) ? StepKind::kPermute : StepKind::kExchange;
}

Axes PlanSpace::MoveAxes(StepKind kind, int x_id, int y_id) const {
  const Split &x = *splits_[x_id], &y = *splits_[y_id];
  if (kind == StepKind::kBroadcast) return owners_[x.variant].axes;
  if (kind == StepKind::kAllGather) {
    if (x.form == y.form) return Added(y_id, x_id);
    Axes out;
    for (int i : Items(x.nodes[0])) out.push_back(items_[i].axis);
    return out;
  }
  if (kind == StepKind::kSlice && Extends(x_id, y_id)) return Added(x_id, y_id);
  const AxisMask atoms = Differing(x_id, y_id);
  if (kind == StepKind::kAllToAll) {
    for (size_t d = 0; d < x.nodes.size(); ++d) {
      if (nodes_[x.nodes[d]].depth <= nodes_[y.nodes[d]].depth) continue;
      Axes out;
      for (int i : Items(x.nodes[d], y.nodes[d])) out.push_back(items_[i].axis);
      return out;
    }
  }
  Axes axes = ToAxes(atoms);
  if (!axes.empty() || kind != StepKind::kSlice) return axes;
  // Only groups of one change hands.
  for (const Split* s : {&x, &y}) {
    for (size_t d = 0; d < s->nodes.size(); ++d) {
      for (int i : Items(s->nodes[d])) {
        if (items_[i].axis.size == 1) axes.push_back(items_[i].axis);
      }
    }
    if (s->form == Form::kOwned) axes = owners_[s->variant].axes;
    if (!axes.empty()) break;
  }
  return axes;
}

std::pair<int64_t, int64_t> PlanSpace::GroupOf(AxisMask atoms) const {
  if (!chains_) return lins::GpusAndNodes(mesh(), ToAxes(atoms));
  int64_t gpus = 1, nodes = 1;
  const int last = mesh().ndim() - 1;
  for (; atoms; atoms &= atoms - 1) {
    const SubAxis& a = items_[std::countr_zero(atoms)].axis;
    (a.axis == last ? gpus : nodes) *= a.size;
  }
  return {gpus, nodes};
}

std::pair<int64_t, int64_t> PlanSpace::MoveGroup(StepKind kind, int x_id, int y_id) const {
  if (!chains_) return lins::GpusAndNodes(mesh(), MoveAxes(kind, x_id, y_id));
  const Split &x = *splits_[x_id], &y = *splits_[y_id];
  if (kind == StepKind::kBroadcast) return GroupOf(x.covers);
  if (kind == StepKind::kAllGather) return GroupOf(x.covers & ~y.covers);
  const AxisMask atoms = Differing(x_id, y_id);
  if (kind != StepKind::kAllToAll) return GroupOf(atoms);
  for (size_t d = 0; d < x.nodes.size(); ++d) {
    if (nodes_[x.nodes[d]].depth <= nodes_[y.nodes[d]].depth) continue;
    AxisMask moved = 0;
    for (int i : Items(x.nodes[d], y.nodes[d])) moved |= items_[i].covers;
    return GroupOf(moved);
  }
  return GroupOf(atoms);
}

Layout PlanSpace::ToLayout(int id, const Pending& pending) const {
  const Split& s = *splits_[id];
  Terms t;
  const auto axes_of = [this](int node) {
    Axes out;
    for (int i : Items(node)) out.push_back(items_[i].axis);
    return out;
  };
  if (s.form == Form::kOwned) {
    t.owned = owners_[s.variant];
  } else if (s.form == Form::kFlat) {
    t.flat = FlatTerm{axes_of(s.nodes[0]), windows_[s.variant].first, windows_[s.variant].second};
  } else {
    for (size_t d = 0; d < s.nodes.size(); ++d) {
      if (nodes_[s.nodes[d]].parent >= 0) {
        t.shards.push_back({static_cast<int>(d), axes_of(s.nodes[d])});
      }
    }
  }
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (pending[i]) t.partials.push_back({ops_[i], ToAxes(pending[i])});
  }
  return src_.WithTerms(std::move(t));
}

}  // namespace lins
