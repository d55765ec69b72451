// One number a rank: where each rank's ranges begin and end, and what two splits have in common.
#include <algorithm>
#include <utility>

#include "placement/boxes.h"
#include "placement/rank_math.h"
#include "placement/space.h"

namespace lins {
namespace {

constexpr int64_t kBlock = 8192;  // numbers

// Blocks of this thread's earlier plans: fresh memory costs a page fault for every 4 KiB.
std::vector<std::unique_ptr<int64_t[]>>& SpareBlocks() {
  static thread_local std::vector<std::unique_ptr<int64_t[]>> spare;
  return spare;
}

}  // namespace

RankVectors::~RankVectors() {
  constexpr size_t kKeep = 64;
  if (ranks_ > kBlock) return;
  std::vector<std::unique_ptr<int64_t[]>>& spare = SpareBlocks();
  for (auto& block : blocks_) {
    if (spare.size() < kKeep) spare.push_back(std::move(block));
  }
}

int64_t* RankVectors::New() {
  if (left_ == 0) {
    std::vector<std::unique_ptr<int64_t[]>>& spare = SpareBlocks();
    left_ = std::max<int64_t>(1, kBlock / ranks_);
    if (ranks_ <= kBlock && !spare.empty()) {
      blocks_.push_back(std::move(spare.back()));
      spare.pop_back();
    } else {
      blocks_.push_back(std::unique_ptr<int64_t[]>(new int64_t[std::max(kBlock, ranks_)]));
    }
    next_ = blocks_.back().get();
  }
  --left_;
  return std::exchange(next_, next_ + ranks_);
}

const std::vector<int64_t>& PlanSpace::Coordinates(int item) const {
  std::vector<int64_t>& c = coordinates_[item];
  if (!c.empty()) return c;
  const SubAxis& axis = items_[item].axis;
  int64_t step = axis.stride;
  for (int i = axis.axis + 1; i < mesh().ndim(); ++i) step *= mesh().shape()[i];
  c.resize(ranks_);
  // Runs of `step` equal numbers.
  int64_t value = 0;
  for (int64_t r = 0; r < ranks_; r += step) {
    std::fill_n(c.begin() + r, std::min(step, ranks_ - r), value);
    if (++value == axis.size) value = 0;
  }
  return c;
}

void PlanSpace::IndexIn(AxisMask atoms, int64_t* out) const {
  std::fill_n(out, ranks_, 0);
  for (size_t i = 0; i < atoms_; ++i) {
    if (!(atoms >> i & 1)) continue;
    const std::vector<int64_t>& c = Coordinates(static_cast<int>(i));
    for (int64_t r = 0; r < ranks_; ++r) out[r] = out[r] * items_[i].axis.size + c[r];
  }
}

void PlanSpace::FillNode(int id) {
  if (nodes_[id].begin) return;
  int64_t *begin = nodes_[id].begin = vectors_.New(), *end = nodes_[id].end = vectors_.New();
  const bool flat = nodes_[id].dim == static_cast<int>(src_.shape().size());
  if (nodes_[id].parent < 0) {
    std::fill_n(begin, ranks_, 0);
    std::fill_n(end, ranks_, flat ? 0 : src_.shape()[nodes_[id].dim]);
    return;
  }
  FillNode(nodes_[id].parent);
  const Node& parent = nodes_[nodes_[id].parent];
  const int64_t k = items_[nodes_[id].item].axis.size;
  const std::vector<int64_t>& c = Coordinates(nodes_[id].item);
  if (flat) {
    for (int64_t r = 0; r < ranks_; ++r) begin[r] = parent.begin[r] * k + c[r];
    return;
  }
  for (int64_t r = 0; r < ranks_; ++r) {
    const int64_t size = (parent.end[r] - parent.begin[r] + k - 1) / k;
    begin[r] = std::min(parent.begin[r] + c[r] * size, parent.end[r]);
    end[r] = std::min(begin[r] + size, parent.end[r]);
  }
}

const PlanSpace::Split& PlanSpace::Filled(int id) {
  if (!splits_[id]->held) {
    for (const int node : splits_[id]->nodes) FillNode(node);
    FillSplit(*splits_[id]);
  }
  return *splits_[id];
}

void PlanSpace::FillSplit(Split& s) {
  int64_t* held = vectors_.New();
  if (s.form == Form::kBox) {
    int64_t whole = 1;
    for (size_t d = 0; d < s.nodes.size(); ++d) {
      if (nodes_[s.nodes[d]].parent < 0) whole *= src_.shape()[d];
    }
    std::fill_n(held, ranks_, whole);
    for (int id : s.nodes) {
      const Node& n = nodes_[id];
      if (n.parent < 0) continue;
      for (int64_t r = 0; r < ranks_; ++r) held[r] *= n.end[r] - n.begin[r];
    }
  } else {
    int64_t *begin = vectors_.New(), *end = vectors_.New();
    if (s.form == Form::kFlat) {
      const auto [offset, total] = windows_[s.variant];
      int64_t slot = total;
      for (int i : Items(s.nodes[0])) slot /= items_[i].axis.size;
      for (int64_t r = 0; r < ranks_; ++r) {
        const int64_t at = nodes_[s.nodes[0]].begin[r] * slot - offset;
        begin[r] = std::clamp<int64_t>(at, 0, numel_);
        end[r] = std::clamp<int64_t>(at + slot, begin[r], numel_);
      }
    } else {
      const OwnedTerm& o = owners_[s.variant];
      for (int64_t r = 0; r < ranks_; ++r) {
        begin[r] = 0;
        end[r] = mesh().IndexInGroup(o.axes, r) == o.owner ? numel_ : 0;
      }
    }
    for (int64_t r = 0; r < ranks_; ++r) held[r] = end[r] - begin[r];
    s.begin = begin;
    s.end = end;
  }
  s.held = held;
  s.most = *std::max_element(held, held + ranks_);
}

void PlanSpace::Overlap(int x_id, int y_id, int64_t* out) {
  const Split *x = &Filled(x_id), *y = &Filled(y_id);
  if (x == y) {
    std::copy_n(x->held, ranks_, out);
    return;
  }
  if (x->form == Form::kBox && y->form == Form::kBox) {
    int64_t whole = 1;
    absl::InlinedVector<std::pair<const Node*, const Node*>, 4> parts;
    for (size_t d = 0; d < x->nodes.size(); ++d) {
      const Node &p = nodes_[x->nodes[d]], &q = nodes_[y->nodes[d]];
      if (p.parent < 0 && q.parent < 0) {
        whole *= src_.shape()[d];
      } else {
        parts.emplace_back(&p, &q);
      }
    }
    std::fill_n(out, ranks_, whole);
    for (const auto& [p, q] : parts) {
      MultiplyCommon(out, p->begin, p->end, q->begin, q->end, ranks_);
    }
    return;
  }
  if (x->form != Form::kBox && y->form != Form::kBox) {
    std::fill_n(out, ranks_, 1);
    MultiplyCommon(out, x->begin, x->end, y->begin, y->end, ranks_);
    return;
  }
  if (y->form == Form::kBox) std::swap(x, y);  // x is the box
  if (IsWhole(*x)) {
    std::copy_n(y->held, ranks_, out);
    return;
  }
  // The dear case, remembered.
  int64_t*& known = mixed_[{std::min(x_id, y_id), std::max(x_id, y_id)}];
  if (known) {
    std::copy_n(known, ranks_, out);
    return;
  }
  known = vectors_.New();
  Ranges box(x->nodes.size());
  for (int64_t r = 0; r < ranks_; ++r) {
    for (size_t d = 0; d < box.size(); ++d) {
      box[d] = {nodes_[x->nodes[d]].begin[r], nodes_[x->nodes[d]].end[r]};
    }
    known[r] = out[r] =
        CountBelow(src_.shape(), box, y->end[r]) - CountBelow(src_.shape(), box, y->begin[r]);
  }
}

}  // namespace lins
