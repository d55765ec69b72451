#include "dtensor/plan_run.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "comm/order_checker.h"
#include "mesh/error.h"

namespace lins {
namespace {

const char* Address(const at::Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); }

bool Same(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == b.numel() && Address(a) == Address(b);
}

bool Overlap(const at::Tensor& a, const at::Tensor& b) {
  return Address(a) < Address(b) + b.nbytes() && Address(b) < Address(a) + a.nbytes();
}

void Zero(const at::Tensor& t) {
  if (t.is_cpu()) {
    if (t.numel() > 0) std::memset(t.mutable_data_ptr(), 0, t.nbytes());
  } else {
    t.zero_();
  }
}

void Pack(const at::Tensor& in, const at::Tensor& packed, const PreparedStep::Pieces& pieces) {
  int64_t at = 0;
  for (const Region& r : pieces.regions) {
    r.Extract(in, packed, at);
    at += r.numel();
  }
}

void Unpack(const at::Tensor& out, const at::Tensor& staged, const PreparedStep::Pieces& pieces) {
  int64_t at = 0;
  for (const Region& r : pieces.regions) {
    r.Insert(out, staged, at);
    at += r.numel();
  }
}

}  // namespace

PlanRun::PlanRun(const PreparedPlan& plan, at::Tensor local, std::optional<at::Tensor> out,
                 World::Lane lane)
    : plan_(plan), lane_(lane), out_(std::move(out)), value_(std::move(local)) {
  LINS_CHECK(value_.is_contiguous() && value_.sizes() == plan.src_sizes(),
             "local tensor does not match ", Describe(plan.src()));
}

void PlanRun::Step() {
  Begin();
  End();
}

void PlanRun::Launch() {
  const int last = plan_.last_communication();
  while (static_cast<int>(at_) < last) {
    Begin();
    End();
  }
  if (static_cast<int>(at_) == last) Begin();
}

at::Tensor PlanRun::Finish() {
  if (in_flight_) End();
  while (at_ < plan_.steps().size()) {
    Begin();
    End();
  }
  if (out_ && plan_.steps().empty() && !Same(*out_, value_)) {
    CopyContiguous(*out_, value_);
    return *out_;
  }
  return std::move(value_);
}

int64_t PlanRun::Room() const {
  int64_t elements = plan_.live_numel();
  if (at_ > 0) elements -= c10::multiply_integers(plan_.src_sizes());
  elements -= value_.numel();
  for (const at::Tensor* t : {&next_, &packed_, &staged_}) {
    if (t->defined() && !t->is_same(value_)) elements -= t->numel();
  }
  return elements * static_cast<int64_t>(value_.element_size());
}

at::Tensor PlanRun::Buffer(int64_t numel) {
  return plan_.staging().Take(numel, value_.options(), Room());
}

at::Tensor PlanRun::Target(const PreparedStep& step) {
  own_next_ = false;
  switch (step.target) {
    case PreparedStep::Target::kInput:
      own_next_ = own_value_;
      return value_;
    case PreparedStep::Target::kBuffer:
      // A slice of the input itself, unless the next step works in place.
      if (step.kind == StepKind::kSlice && step.from.IsRun() && !own_value_ &&
          plan_.steps()[at_ + 1].target != PreparedStep::Target::kInput) {
        return value_.view(-1).narrow(0, step.from.Begin(), step.numel);
      }
      own_next_ = true;
      return Buffer(step.numel);
    case PreparedStep::Target::kResult:
      break;
  }
  if (out_) return *out_;
  // An earlier step may have made the result already: all-reduces work in place.
  const bool made = at_ > 0 && plan_.steps()[at_ - 1].target == PreparedStep::Target::kResult;
  return made ? value_ : plan_.staging().Empty(step.sizes, value_.options(), Room());
}

void PlanRun::Begin() {
  const PreparedStep& step = plan_.steps()[at_];
  next_ = Target(step);
  in_flight_ = true;
  switch (step.kind) {
    case StepKind::kSlice:
    case StepKind::kLocal:
      return Local(step);
    case StepKind::kAllGather:
      return BeginGather(step);
    case StepKind::kReduceScatter:
      return BeginScatter(step);
    case StepKind::kAllReduce:
      if (!Same(value_, next_)) CopyContiguous(next_, value_);
      work_ = Comm().AllReduce(next_, step.op, step.info);
      return;
    case StepKind::kBroadcast:
      if (step.index == step.root && !Same(value_, next_)) CopyContiguous(next_, value_);
      work_ = Comm().Broadcast(next_, step.root, step.info);
      return;
    case StepKind::kAllToAll:
    case StepKind::kPermute:
    case StepKind::kExchange:
      return BeginExchange(step);
  }
}

void PlanRun::End() {
  const PreparedStep& step = plan_.steps()[at_];
  work_.Wait();
  work_ = Work();
  in_flight_ = false;
  if (staged_.defined()) {
    NoteRead(staged_, "unpack", step.info.unit);
    NoteWrite(next_, "unpack", step.info.unit);
    Unpack(next_, staged_, step.recv);
  }
  // After a failure buffers are not given back: the transport may still write to them.
  plan_.staging().Give(std::exchange(packed_, {}));
  plan_.staging().Give(std::exchange(staged_, {}));
  if (own_value_ && !value_.is_same(next_)) plan_.staging().Give(std::move(value_));
  own_value_ = own_next_;
  value_ = std::exchange(next_, {});
  ++at_;
}

void PlanRun::Local(const PreparedStep& step) {
  if (step.kind == StepKind::kSlice && step.from.IsRun() &&
      Address(value_) + step.from.Begin() * value_.element_size() == Address(next_)) {
    return;  // it is a part of the value
  }
  if (!Same(value_, next_)) {
    NoteRead(value_, step.info.op, step.info.unit);
    NoteWrite(next_, step.info.op, step.info.unit);
  }
  if (step.kind == StepKind::kSlice) return step.from.Extract(value_, next_);
  if (step.op != ReduceOp::kSum) {  // the value itself, on every rank
    if (!Same(value_, next_)) CopyContiguous(next_, value_);
    return;
  }
  if (!step.contributes) return Zero(next_);
  const bool all = step.from.IsRun() && step.from.numel() == value_.numel();
  if (all && (!Overlap(value_, next_) || Same(value_, next_))) {
    if (Same(value_, next_)) return;
    if (step.into.numel() < next_.numel()) Zero(next_);
    step.into.Insert(next_, value_);
    return;
  }
  const at::Tensor kept = Buffer(step.from.numel());
  step.from.Extract(value_, kept);
  Zero(next_);
  step.into.Insert(next_, kept);
  plan_.staging().Give(kept);
}

void PlanRun::BeginGather(const PreparedStep& step) {
  if (!step.recv.in_order) staged_ = Buffer(step.recv.numel);
  work_ =
      Comm().AllGather(staged_.defined() ? staged_ : next_, value_, step.recv.counts, step.info);
}

void PlanRun::BeginScatter(const PreparedStep& step) {
  if (!step.send.in_order) {
    packed_ = Buffer(step.send.numel);
    NoteRead(value_, "pack", step.info.unit);
    NoteWrite(packed_, "pack", step.info.unit);
    Pack(value_, packed_, step.send);
  }
  work_ = Comm().ReduceScatter(next_, packed_.defined() ? packed_ : value_, step.op,
                               step.send.counts, step.info);
}

void PlanRun::BeginExchange(const PreparedStep& step) {
  const bool apart = !Overlap(value_, next_);
  if (!step.send.in_order || !apart) {
    packed_ = Buffer(step.send.numel);
    NoteRead(value_, "pack", step.info.unit);
    NoteWrite(packed_, "pack", step.info.unit);
    Pack(value_, packed_, step.send);
  }
  if (!step.recv.in_order) staged_ = Buffer(step.recv.numel);
  work_ = Comm().AllToAll(staged_.defined() ? staged_ : next_, packed_.defined() ? packed_ : value_,
                          step.recv.counts, step.send.counts, step.info);
}

}  // namespace lins
