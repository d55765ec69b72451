#include "placement/space.h"

#include <algorithm>
#include <bit>
#include <set>

#include "mesh/error.h"

namespace lins {
namespace {

// Boundaries of the parts of one axis that a layout's sub-axes name; 1 and the axis' size among
// them.
std::vector<int64_t> Boundaries(int64_t whole, absl::Span<const SubAxis> used, int axis) {
  std::vector<int64_t> out = {1, whole};
  for (const SubAxis& a : used) {
    if (a.axis != axis || a.size == 1) continue;
    out.push_back(a.stride);
    out.push_back(a.stride * a.size);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

bool IsChain(const std::vector<int64_t>& boundaries) {
  for (size_t i = 1; i < boundaries.size(); ++i) {
    if (boundaries[i] % boundaries[i - 1] != 0) return false;
  }
  return true;
}

// `own` and those of `other` that fit among them: no part of one family is then inside a larger
// part of the other.
std::vector<int64_t> Refined(std::vector<int64_t> own, const std::vector<int64_t>& other) {
  for (int64_t boundary : other) {
    std::vector<int64_t> more = own;
    more.push_back(boundary);
    std::sort(more.begin(), more.end());
    more.erase(std::unique(more.begin(), more.end()), more.end());
    if (IsChain(more)) own = std::move(more);
  }
  return own;
}

Axes UsedAxes(const Layout& layout) {
  Axes out = layout.SplitAxes();
  const Axes partial = layout.PartialAxes();
  out.insert(out.end(), partial.begin(), partial.end());
  return out;
}

int64_t RoundUp(int64_t n, int64_t k) { return (n + k - 1) / k * k; }

}  // namespace

PlanSpace::PlanSpace(const Layout& src, const Layout& dst)
    : src_(src), dst_(dst), ranks_(src.mesh().size()), numel_(src.numel()), vectors_(ranks_) {
  AddItems();
  even_line_ = IsEvenLine();
  const int ndim = static_cast<int>(src.shape().size());
  nodes_.reserve(64);
  for (int dim = 0; dim <= ndim; ++dim) {
    nodes_.emplace_back().dim = dim;
    if (!even_line_) FillNode(dim);
  }
  for (const Layout* l : {&src_, &dst_}) {
    if (l->terms().flat) Window(l->terms().flat->offset, l->terms().flat->total);
    if (l->terms().owned) Owner(*l->terms().owned);
    for (const PartialTerm& p : l->terms().partials) {
      if (std::find(ops_.begin(), ops_.end(), p.op) == ops_.end()) ops_.push_back(p.op);
    }
  }
  std::sort(ops_.begin(), ops_.end());
  const auto pending = [this](const Layout& l) {
    Pending out(ops_.size(), 0);
    for (const PartialTerm& p : l.terms().partials) {
      out[std::find(ops_.begin(), ops_.end(), p.op) - ops_.begin()] = AtomsOf(p.axes);
    }
    return out;
  };
  src_pending_ = pending(src_);
  dst_pending_ = pending(dst_);
  src_split_ = FromTerms(src_.terms());
  dst_split_ = FromTerms(dst_.terms());
}

void PlanSpace::AddItems() {
  const Axes a = UsedAxes(src_), b = UsedAxes(dst_);
  Axes both = a;
  both.insert(both.end(), b.begin(), b.end());
  const auto add = [this](const SubAxis& axis) {
    if (ItemOf(axis) < 0) items_.push_back({axis, 0, 0});
  };
  for (int axis = 0; axis < mesh().ndim(); ++axis) {
    const int64_t whole = mesh().shape()[axis];
    // Parts of one axis that do not fit into each other (`gpu:2` and `gpu:3`) stay apart.
    std::vector<std::vector<int64_t>> families = {Boundaries(whole, both, axis)};
    if (!IsChain(families[0])) {
      const auto of_src = Boundaries(whole, a, axis), of_dst = Boundaries(whole, b, axis);
      families = {Refined(of_src, of_dst), Refined(of_dst, of_src)};
      chains_ = false;
    }
    for (const std::vector<int64_t>& f : families) {
      for (size_t i = f.size(); i-- > 1;) add({axis, f[i] / f[i - 1], f[i - 1]});
    }
  }
  atoms_ = items_.size();
  for (const SubAxis& x : both) add(x);
  LINS_CHECK(items_.size() <= 64, "too many sub-axes: ", Describe(src_), " and ", Describe(dst_));
  for (Item& item : items_) {
    for (size_t i = 0; i < atoms_; ++i) {
      const SubAxis& atom = items_[i].axis;
      if (!lins::Overlap(atom, item.axis)) continue;
      item.blocks |= AxisMask{1} << i;
      if (Contains(mesh(), {&item.axis, 1}, {&atom, 1})) item.covers |= AxisMask{1} << i;
    }
  }
  coordinates_.resize(items_.size());
}

bool PlanSpace::IsEvenLine() const {
  if (src_.shape().size() != 1 || numel_ == 0 || numel_ % ranks_ != 0) return false;
  if (!chains_ || atoms_ > sizeof(Split::line)) return false;
  for (const Item& item : items_) {
    if (item.axis.size == 1) return false;
  }
  for (const Layout* l : {&src_, &dst_}) {
    const std::optional<FlatTerm>& f = l->terms().flat;
    if (l->terms().owned || (f && (f->offset != 0 || f->total != numel_))) return false;
  }
  return true;
}

int PlanSpace::ItemOf(const SubAxis& axis) const {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].axis == axis) return static_cast<int>(i);
  }
  return -1;
}

AxisMask PlanSpace::AtomsOf(absl::Span<const SubAxis> axes) const {
  AxisMask out = 0;
  for (const SubAxis& a : axes) {
    if (a.size == 1) continue;  // nothing to reduce, nothing to split
    for (size_t i = 0; i < atoms_; ++i) {
      if (Contains(mesh(), {&a, 1}, {&items_[i].axis, 1})) out |= AxisMask{1} << i;
    }
  }
  return out;
}

int64_t PlanSpace::SizeOf(AxisMask atoms) const {
  int64_t n = 1;
  for (; atoms; atoms &= atoms - 1) n *= items_[std::countr_zero(atoms)].axis.size;
  return n;
}

AxisMask PlanSpace::BlockedBy(AxisMask atoms) const {
  AxisMask out = 0;
  for (; atoms; atoms &= atoms - 1) out |= items_[std::countr_zero(atoms)].blocks;
  return out;
}

int PlanSpace::Child(int node, int item) {
  if (nodes_[node].children.empty()) nodes_[node].children.resize(items_.size(), -1);
  if (const int known = nodes_[node].children[item]; known >= 0) return known;
  Node child;
  child.parent = node;
  child.item = item;
  child.dim = nodes_[node].dim;
  child.depth = nodes_[node].depth + 1;
  child.covers = nodes_[node].covers | items_[item].covers;
  const int id = static_cast<int>(nodes_.size());
  nodes_[node].children[item] = id;
  nodes_.push_back(std::move(child));
  if (!even_line_) FillNode(id);
  return id;
}

absl::InlinedVector<int, 6> PlanSpace::Items(int node, int from) const {
  absl::InlinedVector<int, 6> out;
  for (; node != from && nodes_[node].parent >= 0; node = nodes_[node].parent) {
    out.push_back(nodes_[node].item);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

int PlanSpace::Window(int64_t offset, int64_t total) {
  const std::pair window(offset, total);
  const auto it = std::find(windows_.begin(), windows_.end(), window);
  if (it != windows_.end()) return static_cast<int>(it - windows_.begin());
  windows_.push_back(window);
  return static_cast<int>(windows_.size()) - 1;
}

int PlanSpace::Owner(const OwnedTerm& term) {
  const auto it = std::find(owners_.begin(), owners_.end(), term);
  if (it != owners_.end()) return static_cast<int>(it - owners_.begin());
  owners_.push_back(term);
  return static_cast<int>(owners_.size()) - 1;
}

int PlanSpace::Intern(Form form, int variant, absl::InlinedVector<int, 4> nodes) {
  const int fresh_id = static_cast<int>(splits_.size());
  if (nodes.size() == 1 && variant == 0) {
    int& id = nodes_[nodes[0]].split;
    if (id >= 0) return id;
    id = fresh_id;
  } else {
    const Key key(static_cast<int>(form) * 1024 + variant, nodes);
    const auto [it, fresh] = ids_.try_emplace(key, fresh_id);
    if (!fresh) return it->second;
  }
  auto s = std::make_unique<Split>();
  s->form = form;
  s->variant = variant;
  s->nodes = std::move(nodes);
  const auto uses = [&s](const Item& item) {
    s->covers |= item.covers;
    s->blocks |= item.blocks;
  };
  for (int node : s->nodes) {
    for (; nodes_[node].parent >= 0; node = nodes_[node].parent) uses(items_[nodes_[node].item]);
  }
  if (form == Form::kOwned) {
    for (const SubAxis& a : owners_[variant].axes) uses(items_[ItemOf(a)]);
  }
  if (even_line_) {
    int shift = 0, depth = 0;
    for (const int i : Items(s->nodes[0])) {
      s->path |= static_cast<uint64_t>(i + 1) << 8 * depth++;
      for (AxisMask left = items_[i].covers; left; left &= left - 1, shift += 8) {
        s->line |= static_cast<uint64_t>(std::countr_zero(left) + 1) << shift;
      }
    }
    s->most = numel_ / SizeOf(s->covers);
  } else {
    FillSplit(*s);
  }
  splits_.push_back(std::move(s));
  return fresh_id;
}

int PlanSpace::FromTerms(const Terms& terms) {
  const int ndim = static_cast<int>(src_.shape().size());
  if (terms.owned) return Intern(Form::kOwned, Owner(*terms.owned), {});
  if (terms.flat) {
    int node = ndim;
    for (const SubAxis& a : terms.flat->axes) node = Child(node, ItemOf(a));
    return Intern(Form::kFlat, Window(terms.flat->offset, terms.flat->total), {node});
  }
  absl::InlinedVector<int, 4> nodes(ndim);
  for (int d = 0; d < ndim; ++d) nodes[d] = d;
  for (const ShardTerm& s : terms.shards) {
    for (const SubAxis& a : s.axes) nodes[s.dim] = Child(nodes[s.dim], ItemOf(a));
  }
  return Intern(Form::kBox, 0, std::move(nodes));
}

void PlanSpace::EnumerateBoxes(absl::Span<const int> dims) {
  absl::InlinedVector<int, 4> nodes(src_.shape().size());
  for (size_t d = 0; d < nodes.size(); ++d) nodes[d] = static_cast<int>(d);
  // Lengthens only the dimension at hand or later ones, so that each split comes once.
  const auto extend = [&](auto&& self, size_t at, AxisMask used) -> void {
    all_.push_back(Intern(Form::kBox, 0, nodes));
    for (; at < dims.size(); ++at) {
      int& node = nodes[dims[at]];
      for (size_t i = 0; i < items_.size() && all_.size() < 2 * kManySplits; ++i) {
        if (items_[i].axis.size == 1 || (used & items_[i].covers)) continue;
        const int before = node;
        node = Child(node, static_cast<int>(i));
        self(self, at, used | items_[i].blocks);
        node = before;
      }
    }
  };
  extend(extend, 0, 0);
}

void PlanSpace::EnumerateFlat(int window, int node, AxisMask used) {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].axis.size == 1 || (used & items_[i].covers)) continue;
    const int child = Child(node, static_cast<int>(i));
    int64_t k = 1;
    for (int item : Items(child)) k *= items_[item].axis.size;
    const auto [offset, total] = windows_[window];
    if (total % k == 0 && (window < 3 || total == RoundUp(numel_, k))) {
      all_.push_back(Intern(Form::kFlat, window, {child}));
    }
    if (all_.size() < 3 * kManySplits) EnumerateFlat(window, child, used | items_[i].blocks);
  }
}

const std::vector<int>& PlanSpace::All() {
  if (!all_.empty()) return all_;
  absl::InlinedVector<int, 4> dims;
  const int ndim = static_cast<int>(src_.shape().size());
  for (int d = 0; d < ndim; ++d) dims.push_back(d);
  EnumerateBoxes(dims);
  if (all_.size() > kManySplits) {
    std::set<int> few;
    for (const Layout* l : {&src_, &dst_}) {
      for (const ShardTerm& s : l->terms().shards) few.insert(s.dim);
    }
    few.insert(static_cast<int>(std::max_element(src_.shape().begin(), src_.shape().end()) -
                                src_.shape().begin()));
    all_.clear();
    EnumerateBoxes(std::vector<int>(few.begin(), few.end()));
  }
  Window(0, RoundUp(numel_, ranks_));
  for (AxisMask set = 1; set < AxisMask{1} << std::min<size_t>(atoms_, 6); ++set) {
    Window(0, RoundUp(numel_, SizeOf(set)));
  }
  for (size_t w = 0; w < windows_.size(); ++w) EnumerateFlat(static_cast<int>(w), ndim, 0);
  for (size_t o = 0; o < owners_.size(); ++o) {
    all_.push_back(Intern(Form::kOwned, static_cast<int>(o), {}));
  }
  for (int id : {src_split_, dst_split_}) {
    if (std::find(all_.begin(), all_.end(), id) == all_.end()) all_.push_back(id);
  }
  return all_;
}

}  // namespace lins
