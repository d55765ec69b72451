// The lower bound of received bytes. docs/redistribution.md has the argument.
#include <algorithm>
#include <numeric>

#include "placement/search.h"

namespace lins {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

bool CanBegin(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kMin ||
         op == ReduceOp::kMax;
}

Bound::Bound(PlanSpace& space, bool own_steps) : space_(space), own_steps_(own_steps) {
  for (size_t i = 0; i < space.ops().size(); ++i) {
    const ReduceOp op = space.ops()[i];
    if (own_steps ? op == ReduceOp::kSum : CanBegin(op)) joint_ |= space.dst_pending()[i];
  }
  joint_size_ = space.SizeOf(joint_);
  groups_ = space.ranks() / joint_size_;
  if (space.even_line()) {
    wanted_ = groups_ * space.split(space.dst()).most;
  } else {
    Prepare();
  }
}

void Bound::Prepare() {
  const int64_t n = space_.ranks();
  sums_.resize(groups_);
  scratch_.resize(n);
  group_.resize(n);
  if (joint_size_ == 1) {
    for (int64_t r = 0; r < n; ++r) group_[r] = r;
  } else {
    // Ranks of one group differ in joint_ only: number the groups by their first member.
    std::vector<int64_t> index(n), first(n, -1);
    space_.IndexIn(joint_, index.data());
    const Axes axes = space_.ToAxes(joint_);
    int64_t next = 0;
    for (int64_t r = 0; r < n; ++r) {
      if (index[r] == 0) first[r] = next++;
    }
    for (int64_t r = 0; r < n; ++r) group_[r] = first[space_.mesh().Peer(axes, r, 0)];
  }
  int64_t* whole = owned_.emplace_back(new int64_t[groups_]).get();
  const int64_t* held = space_.Filled(space_.dst()).held;
  for (int64_t r = 0; r < n; ++r) whole[group_[r]] = held[r];
  wanted_ = std::accumulate(whole, whole + groups_, int64_t{0});
  all_missing_ = whole;
}

const int64_t* Bound::Missing(int split, bool reduces) {
  if (reduces) return all_missing_;
  if (static_cast<int>(missing_.size()) <= split) missing_.resize(split + 1, nullptr);
  if (missing_[split]) return missing_[split];
  int64_t* out = owned_.emplace_back(new int64_t[groups_]).get();
  const PlanSpace::Split& s = space_.split(split);
  space_.Overlap(split, space_.dst(), scratch_.data());
  // Of what a group holds together, every piece is held by `copies` members.
  int64_t copies = space_.SizeOf(joint_ & ~s.covers);
  if ((s.blocks & ~s.covers) & joint_) copies = 0;  // parts of axes cut two ways: no claim
  std::fill_n(out, groups_, 0);
  for (int64_t r = 0; r < space_.ranks(); ++r) out[group_[r]] += scratch_[r];
  for (int64_t g = 0; g < groups_; ++g) {
    out[g] = copies == 0 ? 0 : std::max<int64_t>(0, all_missing_[g] - out[g] / copies);
  }
  return missing_[split] = out;
}

int64_t Bound::EvenMissing(int split, bool reduces) const {
  const int64_t whole = space_.split(space_.dst()).most;
  if (reduces) return whole;
  const int64_t common = space_.EvenOverlap(split, space_.dst());
  if (common < 0) return -1;
  const int64_t copies = space_.SizeOf(joint_ & ~space_.split(split).covers);
  return std::max<int64_t>(0, whole - joint_size_ * common / copies);
}

int64_t Bound::AtLeast(const int64_t* so_far, int split, const PlanSpace::Pending& pending) {
  int64_t contributions = 1, kept = 1, apart = 1;
  AxisMask all = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    const AxisMask stays = pending[i] & space_.dst_pending()[i];
    all |= pending[i];
    if (CanBegin(space_.ops()[i])) {
      contributions *= space_.SizeOf(pending[i]);
      kept *= space_.SizeOf(stays);
    } else {
      contributions *= space_.SizeOf(pending[i] & ~stays);
      apart *= space_.SizeOf(stays);
    }
  }
  const bool reduces = contributions > kept;
  const int64_t n = space_.ranks();
  if (space_.BlockedBy(all & ~joint_) & joint_) {  // parts of axes cut two ways: no claim
    return so_far ? *std::max_element(so_far, so_far + n) : 0;
  }
  int64_t worst = 0, total = 0;
  const int64_t even = !so_far && space_.even_line() ? EvenMissing(split, reduces) : -1;
  if (even < 0 && !all_missing_) Prepare();
  const int64_t* missing = even < 0 ? Missing(split, reduces) : nullptr;
  if (even >= 0) {
    worst = CeilDiv(even, joint_size_);
  } else if (joint_size_ == 1) {
    for (int64_t r = 0; r < n; ++r) {
      const int64_t v = so_far ? so_far[r] : 0;
      worst = std::max(worst, v + missing[r]);
      total += v;
    }
  } else {
    std::copy_n(missing, groups_, sums_.begin());
    for (int64_t r = 0; r < n && so_far; ++r) {
      worst = std::max(worst, so_far[r]);
      total += so_far[r];
      sums_[group_[r]] += so_far[r];
    }
    for (int64_t sum : sums_) worst = std::max(worst, CeilDiv(sum, joint_size_));
  }
  if (reduces && !own_steps_) {
    // An element's contributions: kept of them lie in a group that wants it, every other one must
    // be sent before the first such group is complete; every further group completes by another
    // message.
    total += apart * space_.numel() * (contributions - kept - 1) + wanted_;
    worst = std::max(worst, CeilDiv(total, n));
  }
  return worst;
}

int64_t LowerBoundBytes(const Layout& src, const Layout& dst, int64_t itemsize) {
  PlanSpace space(src, dst);
  return Bound(space).AtLeast(nullptr, space.src(), space.src_pending()) * itemsize;
}

}  // namespace lins
