#include "dtensor/prepared_plan.h"

#include <utility>

#include "dtensor/plan_cache.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::vector<int64_t> Sizes(const Shape& shape) { return {shape.begin(), shape.end()}; }

// Works out one step for one rank.
class Preparation {
 public:
  Preparation(const Step& step, const LiveMesh& mesh, std::string unit)
      : step_(step), mesh_(mesh), rank_(mesh.rank()) {
    out_.kind = step.kind;
    out_.info = {std::move(unit), mesh.AxesToString(step.axes),
                 std::string(StepKindName(step.kind))};
    out_.group = mesh.Group(step.axes, rank_);
    out_.sizes = Sizes(step.after.LocalShape(rank_));
    out_.numel = step.after.LocalNumel(rank_);
  }

  PreparedStep Run() {
    switch (step_.kind) {
      case StepKind::kSlice:
        out_.from = Region::Common(step_.before, rank_, step_.after, rank_);
        break;
      case StepKind::kLocal:
        BeginPartial();
        break;
      case StepKind::kAllGather:
        out_.recv = PiecesOf(step_.after, step_.before);
        break;
      case StepKind::kReduceScatter:
        out_.op = Op(step_.before);
        out_.send = PiecesOf(step_.before, step_.after);
        break;
      case StepKind::kAllReduce:
        out_.op = Op(step_.before);
        break;
      case StepKind::kBroadcast:
        out_.root = step_.before.terms().owned->owner;
        out_.index = mesh_.IndexInGroup(step_.axes, rank_);
        break;
      case StepKind::kAllToAll:
      case StepKind::kPermute:
      case StepKind::kExchange:
        Exchange();
        break;
    }
    return std::move(out_);
  }

 private:
  // Of the reduction that pends over the step's axes. Over axes of one rank several may: sum.
  ReduceOp Op(const Layout& layout) const {
    for (const PartialTerm& p : layout.terms().partials) {
      if (Contains(mesh_, p.axes, step_.axes)) return p.op;
    }
    LINS_CHECK(out_.group.size() == 1, "no pending reduction over the axes of ", layout.ToString());
    return ReduceOp::kSum;
  }

  static void Add(PreparedStep::Pieces& pieces, Region region) {
    pieces.in_order = pieces.in_order && region.IsRun() &&
                      (region.numel() == 0 || region.Begin() == pieces.numel);
    pieces.numel += region.numel();
    pieces.counts.push_back(region.numel());
    pieces.regions.push_back(std::move(region));
  }

  // The group's pieces of what this rank holds under `whole`, as each member has them under
  // `piece`.
  PreparedStep::Pieces PiecesOf(const Layout& whole, const Layout& piece) const {
    PreparedStep::Pieces out;
    for (const int64_t member : out_.group) Add(out, Region::Common(whole, rank_, piece, member));
    return out;
  }

  // Every rank contributes the shard that it alone holds; of replicas only the first does.
  void BeginPartial() {
    out_.op = Op(step_.after);
    Axes replicated;
    for (const SubAxis& a : step_.axes) {
      bool split = false;
      for (const SubAxis& s : step_.before.SplitAxes()) split = split || Overlap(a, s);
      if (!split) replicated.push_back(a);
    }
    out_.contributes = mesh_.IndexInGroup(replicated, rank_) == 0;
    out_.from = Region::Common(step_.before, rank_, step_.after, rank_);
    out_.into = Region::Common(step_.after, rank_, step_.before, rank_);
  }

  // Each element comes from its nearest holder: the one that differs from the receiver only in axes
  // that split the source.
  bool Sends(int64_t sender, int64_t receiver) const {
    const Axes split = step_.before.SplitAxes();
    return mesh_.Peer(split, receiver, mesh_.IndexInGroup(split, sender)) == sender;
  }

  void Exchange() {
    for (const int64_t peer : out_.group) {
      Add(out_.send,
          Sends(rank_, peer) ? Region::Common(step_.before, rank_, step_.after, peer) : Region());
      Add(out_.recv,
          Sends(peer, rank_) ? Region::Common(step_.after, rank_, step_.before, peer) : Region());
    }
    LINS_CHECK(out_.recv.numel == out_.numel, "exchange brings ", out_.recv.numel, " of ",
               out_.numel, " elements");
    out_.send.in_order = out_.send.in_order && out_.send.numel == step_.before.LocalNumel(rank_);
  }

  const Step& step_;
  const LiveMesh& mesh_;
  const int64_t rank_;
  PreparedStep out_;
};

}  // namespace

PreparedPlan::PreparedPlan(const RedistributionPlan& plan, const LiveMesh& mesh, Role role)
    : src_(plan.src),
      dst_(plan.dst),
      itemsize_(plan.itemsize),
      role_(role),
      world_(&mesh.world()),
      staging_(mesh.cache().staging()),
      src_sizes_(Sizes(plan.src.LocalShape(mesh.rank()))),
      live_numel_(LiveBytes(plan, mesh.rank()) / plan.itemsize),
      comms_(plan.steps.size()) {}

std::shared_ptr<const PreparedPlan> PreparedPlan::Create(const RedistributionPlan& plan,
                                                         const LiveMesh& mesh, Role role,
                                                         std::string unit) {
  const std::shared_ptr<PreparedPlan> out(new PreparedPlan(plan, mesh, role));
  for (const Step& step : plan.steps) {
    out->steps_.push_back(Preparation(step, mesh, unit).Run());
    if (out->steps_.back().communicates()) {
      out->last_communication_ = static_cast<int>(out->steps_.size()) - 1;
    }
  }
  // All-reduces work in place, so the result serves from the step on after which only they follow.
  using Target = PreparedStep::Target;
  bool last = true;
  for (size_t i = out->steps_.size(); i-- > 0;) {
    const bool reduces = out->steps_[i].kind == StepKind::kAllReduce;
    out->steps_[i].target = last           ? Target::kResult
                            : reduces && i ? Target::kInput
                                           : Target::kBuffer;
    last = last && reduces;
  }
  return out;
}

Communicator& PreparedPlan::Comm(size_t step, World::Lane lane) const {
  world_->CheckRunning();
  std::atomic<Communicator*>& known = comms_[step][static_cast<int>(lane)];
  if (Communicator* comm = known.load(std::memory_order_acquire)) return *comm;
  Communicator& comm = world_->Get(steps_[step].group, role_, lane);
  known.store(&comm, std::memory_order_release);
  return comm;
}

}  // namespace lins
