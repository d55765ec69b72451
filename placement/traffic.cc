// Who holds what in common, and what a step makes each rank receive.
#include <algorithm>

#include "mesh/error.h"
#include "placement/boxes.h"
#include "placement/redistribution.h"

namespace lins {
namespace {

constexpr size_t kDims = 64;  // as many as torch's tensors have

bool IsLine(const Layout& l) { return l.IsFlatOrOwned(); }

}  // namespace

int64_t CountBelow(const Shape& shape, const Ranges& box, int64_t x) {
  // Elements of the tensor, and of the box, in one step along each dimension.
  int64_t steps[kDims], pieces[kDims];
  const size_t ndim = shape.size();
  LINS_CHECK(ndim <= kDims, "tensors have at most ", kDims, " dimensions");
  int64_t inner = 1, n = 1;
  for (size_t d = ndim; d-- > 0;) {
    steps[d] = inner;
    pieces[d] = n;
    inner *= shape[d];
    n *= box[d].second - box[d].first;
  }
  if (n == 0 || x <= 0) return 0;
  if (x >= inner) return n;
  int64_t count = 0;
  for (size_t d = 0; d < ndim; ++d) {
    const int64_t i = steps[d] == 1 ? x : x / steps[d];  // coordinates below i come wholly before x
    x -= i * steps[d];
    count += pieces[d] * (std::clamp(i, box[d].first, box[d].second) - box[d].first);
    if (i < box[d].first || i >= box[d].second) return count;
  }
  return count;
}

int64_t OverlapElements(const Layout& x, int64_t a, const Layout& y, int64_t b) {
  const Ranges p = x.RangesOf(a), q = y.RangesOf(b);
  if (IsLine(x) && !IsLine(y)) {
    return CountBelow(x.shape(), q, p[0].second) - CountBelow(x.shape(), q, p[0].first);
  }
  if (!IsLine(x) && IsLine(y)) {
    return CountBelow(x.shape(), p, q[0].second) - CountBelow(x.shape(), p, q[0].first);
  }
  int64_t n = 1;
  for (size_t d = 0; d < p.size(); ++d) {
    n *=
        std::max<int64_t>(0, std::min(p[d].second, q[d].second) - std::max(p[d].first, q[d].first));
  }
  return n;
}

int64_t Holder(const Layout& layout, int64_t shard, int64_t rank) {
  return layout.mesh().Peer(layout.SplitAxes(), rank, shard);
}

int64_t RecvBytes(const Step& step, int64_t rank, int64_t itemsize) {
  const Mesh& mesh = step.before.mesh();
  const int64_t k = Mesh::GroupSize(step.axes);
  switch (step.kind) {
    case StepKind::kSlice:
    case StepKind::kLocal:
      return 0;
    case StepKind::kReduceScatter:
      return (k - 1) * step.after.LocalNumel(rank) * itemsize;
    case StepKind::kAllReduce: {
      const int64_t n = step.after.LocalNumel(rank);
      const Range own = Chunk({0, n}, k, mesh.IndexInGroup(step.axes, rank));
      const int64_t chunk = own.second - own.first;
      return ((k - 1) * chunk + n - chunk) * itemsize;
    }
    default:
      return (step.after.LocalNumel(rank) - OverlapElements(step.before, rank, step.after, rank)) *
             itemsize;
  }
}

int64_t StepVolume(StepKind kind, int64_t in, int64_t out) {
  const bool gathers = kind == StepKind::kAllGather || kind == StepKind::kBroadcast;
  const bool pairwise = kind == StepKind::kPermute || kind == StepKind::kExchange;
  return gathers ? out : pairwise ? std::max(in, out) : in;
}

std::pair<int64_t, int64_t> GpusAndNodes(const Mesh& mesh, const Axes& axes) {
  int64_t gpus = 1, nodes = 1;
  for (const SubAxis& a : axes) (a.axis == mesh.ndim() - 1 ? gpus : nodes) *= a.size;
  return {gpus, nodes};
}

Step MakeStep(StepKind kind, Axes axes, Layout before, Layout after, int64_t itemsize,
              const CostModel* cost_model) {
  Step step{kind, std::move(axes), std::move(before), std::move(after)};
  const Mesh& mesh = step.before.mesh();
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    step.recv_bytes = std::max(step.recv_bytes, RecvBytes(step, rank, itemsize));
    step.peak_bytes = std::max(
        step.peak_bytes, (step.before.LocalNumel(rank) + step.after.LocalNumel(rank)) * itemsize);
  }
  const int64_t in = step.before.MaxLocalNumel(), out = step.after.MaxLocalNumel();
  step.bytes = StepVolume(kind, in, out) * itemsize;
  step.in_bytes = in * itemsize;
  step.out_bytes = out * itemsize;
  if (cost_model && step.recv_bytes > 0) {
    const auto [gpus, nodes] = GpusAndNodes(mesh, step.axes);
    step.seconds = cost_model->Seconds(kind, step.bytes, gpus, nodes);
  }
  return step;
}

}  // namespace lins
