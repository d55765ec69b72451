#include "placement/step_costs.h"

#include <algorithm>

#include "placement/rank_math.h"

namespace lins {

StepCosts::StepCosts(PlanSpace& space, const SearchOptions& options)
    : s_(space), options_(options), n_(space.ranks()) {}

const StepCosts::Move& StepCosts::MoveCost(int from, int to) {
  Move& move = Slot(from, to);
  if (move.worst >= 0) return move;
  if (s_.even_line()) {
    const auto [kind, axes] = s_.LineMove(from, to);
    move.worst = 0;
    if (kind == StepKind::kSlice) return move;
    const int64_t in = s_.split(from).most, out = s_.split(to).most;
    const auto group = s_.GroupOf(axes);
    move.axes = axes;
    move.worst = out - std::max<int64_t>(0, s_.EvenOverlap(from, to));
    move.group = group.first * group.second;
    if (options_.cost_model) move.seconds = ModelSeconds(kind, StepVolume(kind, in, out), group);
    return move;
  }
  const Edge edge{EdgeKind::kMove, 0};
  move.worst = Worst(edge, from, to);
  if (move.worst > 0) {
    move.axes = s_.Differing(from, to);
    move.group = s_.SizeOf(move.axes);
    if (options_.cost_model) move.seconds = Seconds(edge, from, to, move.worst);
  }
  return move;
}

StepCosts::Move& StepCosts::Slot(int from, int to) {
  const size_t n = s_.splits();
  if (n > kRemembered) return other_ = Move();
  if (moves_.size() < n) moves_.resize(n);
  std::vector<Move>& row = moves_[from];
  if (row.size() < n) row.resize(n);
  return row[to];
}

bool StepCosts::Receive(const Edge& edge, int from, int to, int64_t* out) {
  const int64_t k = s_.SizeOf(edge.axes), *held = s_.Filled(to).held;
  if (edge.kind == EdgeKind::kMove) {
    s_.Overlap(from, to, out);
    return SubtractFrom(held, out, n_);
  } else if (edge.kind == EdgeKind::kScatter) {
    for (int64_t r = 0; r < n_; ++r) out[r] = (k - 1) * held[r];
  } else if (edge.kind == EdgeKind::kReduce) {
    // A chunk of the buffer is reduced by each, then spread: both halves are straight.
    const std::vector<int64_t>& index = IndexIn(edge.axes);
    for (int64_t r = 0; r < n_; ++r) {
      const Range own = Chunk({0, held[r]}, k, index[r]);
      out[r] = held[r] + (k - 2) * (own.second - own.first);
    }
  } else {
    std::fill_n(out, n_, 0);
    return false;
  }
  return true;
}

int64_t StepCosts::Worst(const Edge& edge, int from, int to) {
  if (edge.kind == EdgeKind::kBegin) return 0;
  const int64_t k = s_.SizeOf(edge.axes), most = s_.split(to).most;
  if (edge.kind == EdgeKind::kScatter) return (k - 1) * most;
  if (edge.kind == EdgeKind::kReduce) return most + (k - 2) * ((most + k - 1) / k);
  if (s_.even_line()) return most - std::max<int64_t>(0, s_.EvenOverlap(from, to));
  scratch_.resize(n_);
  Receive(edge, from, to, scratch_.data());
  return *std::max_element(scratch_.begin(), scratch_.end());
}

StepKind StepCosts::MoveKind(int from, int to) {
  if (s_.even_line()) return s_.LineMove(from, to).first;
  scratch_.resize(n_);
  Receive({EdgeKind::kMove, 0}, from, to, scratch_.data());
  return s_.MoveKind(from, to, scratch_.data());
}

double StepCosts::Seconds(const Edge& edge, int from, int to, int64_t worst) {
  if (worst == 0) return 0;
  const int64_t in = s_.split(from).most, out = s_.split(to).most;
  switch (edge.kind) {
    case EdgeKind::kScatter:
      return ModelSeconds(StepKind::kReduceScatter, StepVolume(StepKind::kReduceScatter, in, out),
                          s_.chains() ? s_.GroupOf(s_.split(to).covers & ~s_.split(from).covers)
                                      : GpusAndNodes(s_.mesh(), s_.Added(from, to)));
    case EdgeKind::kReduce:
      return ModelSeconds(StepKind::kAllReduce, StepVolume(StepKind::kAllReduce, in, out),
                          s_.GroupOf(edge.axes));
    default: {
      const StepKind kind = MoveKind(from, to);
      return ModelSeconds(kind, StepVolume(kind, in, out), s_.MoveGroup(kind, from, to));
    }
  }
}

double StepCosts::ModelSeconds(StepKind kind, int64_t elements, std::pair<int64_t, int64_t> group) {
  const int64_t bytes = elements * options_.itemsize;
  const auto [gpus, nodes] = group;
  const uint64_t mixed = (static_cast<uint64_t>(bytes) ^ static_cast<uint64_t>(gpus) << 44 ^
                          static_cast<uint64_t>(nodes) << 54 ^ static_cast<uint64_t>(kind)) *
                         0x9e3779b97f4a7c15u;
  Answer& answer = answers_[mixed >> (64 - kAnswerBits)];
  if (answer.kind != kind || answer.bytes != bytes || answer.gpus != gpus ||
      answer.nodes != nodes) {
    answer = {kind, bytes, gpus, nodes, options_.cost_model->Seconds(kind, bytes, gpus, nodes)};
  }
  return answer.seconds;
}

const std::vector<int64_t>& StepCosts::IndexIn(AxisMask axes) {
  std::vector<int64_t>& index = index_[axes];
  if (index.empty()) {
    index.resize(n_);
    s_.IndexIn(axes, index.data());
  }
  return index;
}

int64_t StepCosts::Peak(int from, int to) {
  if (s_.even_line()) return (s_.split(from).most + s_.split(to).most) * options_.itemsize;
  const int64_t *a = s_.split(from).held, *b = s_.split(to).held;
  int64_t peak = 0;
  for (int64_t r = 0; r < n_; ++r) peak = std::max(peak, a[r] + b[r]);
  return peak * options_.itemsize;
}

std::pair<StepKind, Axes> StepCosts::KindAndAxes(const Edge& edge, int from, int to) {
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
      const StepKind kind = MoveKind(from, to);
      return {kind, s_.MoveAxes(kind, from, to)};
    }
  }
}

}  // namespace lins
