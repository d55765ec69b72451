#include "dtensor/execute.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "dtensor/region.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::vector<int64_t> Sizes(const Shape& shape) { return {shape.begin(), shape.end()}; }

// One step on one rank. Invariant: `in` has the local shape of step.before, `out` that of
// step.after.
class StepRunner {
 public:
  StepRunner(const Step& step, const LiveMesh& mesh, const ExecuteOptions& options)
      : step_(step),
        mesh_(mesh),
        options_(options),
        rank_(mesh.rank()),
        group_(mesh.Group(step.axes, rank_)) {}

  void Run(const at::Tensor& in, const at::Tensor& out) {
    switch (step_.kind) {
      case StepKind::kSlice:
        return Slice(in, out);
      case StepKind::kLocal:
        return BeginPartial(in, out);
      case StepKind::kAllGather:
        return AllGather(in, out);
      case StepKind::kReduceScatter:
        return ReduceScatter(in, out);
      case StepKind::kAllReduce:
        if (!Same(in, out)) out.copy_(in);
        return Comm().AllReduce(out, Op(), Info()).Wait();
      case StepKind::kBroadcast:
        return Broadcast(in, out);
      case StepKind::kAllToAll:
      case StepKind::kPermute:
      case StepKind::kExchange:
        return Exchange(in, out);
    }
  }

 private:
  Communicator& Comm() const { return mesh_.world().Get(group_, options_.role); }
  OpInfo Info() const {
    return {options_.unit, mesh_.AxesToString(step_.axes), std::string(StepKindName(step_.kind))};
  }

  static bool Same(const at::Tensor& a, const at::Tensor& b) {
    return a.numel() == b.numel() && a.const_data_ptr() == b.const_data_ptr();
  }

  ReduceOp Op() const {
    for (const PartialTerm& p : step_.before.terms().partials) {
      if (Contains(mesh_, p.axes, step_.axes)) return p.op;
    }
    LINS_CHECK(false, "no pending reduction over the axes of ", step_.before.ToString());
  }

  // The group's pieces of `whole` (held by this rank under `whole_layout`), as each member has them
  // under `piece_layout`. `in_order`: they lie one after another and fill it, so no packing is
  // needed.
  struct Pieces {
    std::vector<Region> regions;
    Counts counts;
    bool in_order = true;
  };
  Pieces PiecesOf(const Layout& whole_layout, const Layout& piece_layout) const {
    Pieces p;
    int64_t at = 0;
    for (int64_t member : group_) {
      Region r = Region::Common(whole_layout, rank_, piece_layout, member);
      p.in_order = p.in_order && r.IsRun() && (r.numel() == 0 || r.Begin() == at);
      at += r.numel();
      p.counts.push_back(r.numel());
      p.regions.push_back(std::move(r));
    }
    return p;
  }

  void Slice(const at::Tensor& in, const at::Tensor& out) {
    const Region r = Region::Common(step_.before, rank_, step_.after, rank_);
    if (r.IsRun() && Same(in.view(-1).narrow(0, r.Begin(), r.numel()), out)) return;
    r.Extract(in, out.view(-1));
  }

  void BeginPartial(const at::Tensor& in, const at::Tensor& out) {
    ReduceOp op = ReduceOp::kSum;
    for (const PartialTerm& p : step_.after.terms().partials) {
      if (Contains(mesh_, p.axes, step_.axes)) op = p.op;
    }
    if (op != ReduceOp::kSum) {  // the value itself, on every rank
      if (!Same(in, out)) out.copy_(in);
      return;
    }
    // Every rank contributes the shard it alone holds; of replicas only the first does.
    Axes replicated;
    for (const SubAxis& a : step_.axes) {
      bool split = false;
      for (const SubAxis& s : step_.before.SplitAxes()) split = split || Overlap(a, s);
      if (!split) replicated.push_back(a);
    }
    const Region r = Region::Common(step_.after, rank_, step_.before, rank_);
    const Region mine = Region::Common(step_.before, rank_, step_.after, rank_);
    const at::Tensor kept = at::empty({mine.numel()}, in.options());
    mine.Extract(in, kept);  // `out` may share memory with `in`
    out.zero_();
    if (mesh_.IndexInGroup(replicated, rank_) == 0) r.Insert(out, kept);
  }

  void AllGather(const at::Tensor& in, const at::Tensor& out) {
    const Pieces p = PiecesOf(step_.after, step_.before);
    if (p.in_order) {
      return Comm().AllGather(out.view(-1), in.view(-1), p.counts, Info()).Wait();
    }
    const at::Tensor staging = at::empty({out.numel()}, out.options());
    Comm().AllGather(staging, in.view(-1), p.counts, Info()).Wait();
    int64_t at = 0;
    for (size_t i = 0; i < group_.size(); at += p.counts[i++]) {
      p.regions[i].Insert(out, staging.narrow(0, at, p.counts[i]));
    }
  }

  void ReduceScatter(const at::Tensor& in, const at::Tensor& out) {
    const Pieces p = PiecesOf(step_.before, step_.after);
    if (p.in_order) {
      return Comm().ReduceScatter(out.view(-1), in.view(-1), Op(), p.counts, Info()).Wait();
    }
    const at::Tensor packed = at::empty({in.numel()}, in.options());
    Pack(in, packed, p);
    Comm().ReduceScatter(out.view(-1), packed, Op(), p.counts, Info()).Wait();
  }

  void Broadcast(const at::Tensor& in, const at::Tensor& out) {
    const int64_t root = step_.before.terms().owned->owner;
    if (mesh_.IndexInGroup(step_.axes, rank_) == root && !Same(in, out))
      out.copy_(in.view(out.sizes()));
    Comm().Broadcast(out, root, Info()).Wait();
  }

  static void Pack(const at::Tensor& in, const at::Tensor& packed, const Pieces& p) {
    int64_t at = 0;
    for (size_t i = 0; i < p.regions.size(); at += p.counts[i++]) {
      p.regions[i].Extract(in, packed.narrow(0, at, p.counts[i]));
    }
  }

  // Each element comes from its nearest holder: the one that differs from the receiver only in axes
  // that split the source.
  bool Sends(int64_t sender, int64_t receiver) const {
    const Axes split = step_.before.SplitAxes();
    return mesh_.Peer(split, receiver, mesh_.IndexInGroup(split, sender)) == sender;
  }

  void Exchange(const at::Tensor& in, const at::Tensor& out) {
    Pieces send, recv;
    int64_t sent = 0, received = 0;
    for (int64_t peer : group_) {
      Region s =
          Sends(rank_, peer) ? Region::Common(step_.before, rank_, step_.after, peer) : Region();
      Region r =
          Sends(peer, rank_) ? Region::Common(step_.after, rank_, step_.before, peer) : Region();
      sent += s.numel();
      received += r.numel();
      send.counts.push_back(s.numel());
      recv.counts.push_back(r.numel());
      send.regions.push_back(std::move(s));
      recv.regions.push_back(std::move(r));
    }
    LINS_CHECK(received == out.numel(), "exchange brings ", received, " of ", out.numel(),
               " elements");
    const at::Tensor packed = at::empty({sent}, in.options());
    const at::Tensor staging = at::empty({received}, in.options());
    Pack(in, packed, send);
    Comm().AllToAll(staging, packed, recv.counts, send.counts, Info()).Wait();
    int64_t at = 0;
    for (size_t i = 0; i < group_.size(); at += recv.counts[i++]) {
      recv.regions[i].Insert(out, staging.narrow(0, at, recv.counts[i]));
    }
  }

  const Step& step_;
  const LiveMesh& mesh_;
  const ExecuteOptions& options_;
  int64_t rank_;
  std::vector<int64_t> group_;
};

}  // namespace

at::Tensor Execute(const RedistributionPlan& plan, const at::Tensor& local, const LiveMesh& mesh,
                   const ExecuteOptions& options) {
  c10::NoGradGuard no_grad;
  const int64_t rank = mesh.rank();
  LINS_CHECK(local.is_contiguous() && local.sizes().vec() == Sizes(plan.src.LocalShape(rank)),
             "local tensor does not match ", Describe(plan.src));
  at::Tensor value = local;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const Shape shape = step.after.LocalShape(rank);
    // The caller's output serves from the step on after which only all-reduces, which work in
    // place, follow.
    bool last = true;
    for (size_t j = i + 1; j < plan.steps.size(); ++j)
      last = last && plan.steps[j].kind == StepKind::kAllReduce;
    at::Tensor out;
    if (options.out && last) {
      out = *options.out;
    } else if (step.kind == StepKind::kAllReduce && i > 0) {
      out = value;
    } else {
      out = at::empty(Sizes(shape), local.options());
    }
    StepRunner(step, mesh, options).Run(value, out);
    value = out;
  }
  if (options.out && plan.steps.empty() &&
      options.out->const_data_ptr() != local.const_data_ptr()) {
    options.out->copy_(local);
    return *options.out;
  }
  return value;
}

}  // namespace lins
