// How a micro-batch's gradient goes from a flat buffer to G, and after the last one to OS.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/order_checker.h"
#include "dtensor/plan_cache.h"
#include "dtensor/staged.h"
#include "runtime/flat_buffer.h"
#include "runtime/paper_steps.h"

namespace lins {
namespace {

// The elements of windows that were not written, padding included, as runs.
template <typename Fn>
void ForEachUnwritten(const std::vector<Window>& windows, const std::vector<bool>& written,
                      int64_t total, Fn fn) {
  for (size_t i = 0; i < windows.size(); ++i) {
    if (!written[i]) fn(windows[i].offset, windows[i].numel);
  }
  const int64_t end = windows.empty() ? 0 : windows.back().offset + windows.back().numel;
  if (end < total) fn(end, total - end);
}

constexpr int64_t kAnyRoom = std::numeric_limits<int64_t>::max();

}  // namespace

struct FlatBuffer::Contribution {
  // Where G is cut: the whole buffer. Elsewhere the gradient was added to G as it came.
  std::shared_ptr<BufferPool::Lease> lease;
  at::Tensor bucket;
  std::vector<bool> written;
  bool accumulating;  // G holds earlier micro-batches
  // What is reduced next: a part of the bucket or of G.
  at::Tensor piece;

  void Release() {
    bucket = piece = at::Tensor();
    lease.reset();
  }
};

FlatBuffer::Reduction FlatBuffer::FinishMicroBatch(bool last, double divisor) {
  Reduction out;
  if (windows_.empty()) return out;
  Target(0);  // a rank without gradients contributes zeros
  const auto c = std::make_shared<Contribution>();
  const bool cut = bucket_.defined();
  // G without cuts keeps what earlier micro-batches wrote.
  c->written = cut ? arrived_ : used_;
  c->lease = std::move(bucket_lease_);
  c->bucket = std::move(bucket_);
  c->accumulating = accumulating_;
  if (!pool_->queue().is_cpu()) out.lease = c->lease;
  bucket_lease_.reset();
  bucket_ = at::Tensor();
  std::fill(arrived_.begin(), arrived_.end(), false);
  accumulating_ = true;
  if (!cut && !last) return out;
  out.stages.push_back({{}, [this, c, cut] {
                          const at::Tensor& target = cut ? c->bucket : grad_;
                          NoteWrite(target, "zero what has no gradient", unit_);
                          ForEachUnwritten(
                              windows_, c->written, plan_.total,
                              [&](int64_t at, int64_t n) { target.narrow(0, at, n).zero_(); });
                        }});
  if (plan_.family == Family::kPaper) {
    ReduceAsInPaper(c, last, out);
  } else {
    ReducePlanned(c, last, out);
  }
  if (last && divisor != 1)
    out.stages.push_back({{}, [this, divisor] {
                            NoteWrite(OptimGrad(), "divide", unit_);
                            OptimGrad().div_(divisor);
                          }});
  return out;
}

void FlatBuffer::ReducePlanned(const Shared& c, bool last, Reduction& out) const {
  if (c->bucket.defined()) {
    // Straight into G where it is empty and of the dtype that is sent.
    const bool direct = !c->accumulating && types_.grad == types_.reduce;
    AddStages(
        accumulate_,
        [this, c, direct] {
          c->piece = direct ? grad_ : Part(c->bucket, plan_.gather.dst, plan_.grad);
          return StagedTensors{c->bucket, c->piece};
        },
        out.stages);
    out.freed = out.stages.size();
    out.stages.push_back({{}, [this, c, direct] {
                            NoteRead(c->piece, "accumulate", unit_);
                            NoteWrite(grad_, "accumulate", unit_);
                            if (c->accumulating) {
                              grad_.add_(c->piece);
                            } else if (!direct) {
                              grad_.copy_(c->piece);
                            }
                            c->Release();
                          }});
  }
  if (!last) return;
  if (types_.grad == types_.reduce || plan_.reduce.steps.empty()) {
    AddStages(
        reduce_,
        [this] {
          return StagedTensors{grad_, OptimGrad()};
        },
        out.stages);
    return;
  }
  AddStages(
      reduce_,
      [this, c] {
        // It goes from the stream of the first stage to that of the last.
        c->piece = mesh_.cache().staging()->Take(OptimGrad().numel(),
                                                 grad_.options().dtype(types_.reduce), kAnyRoom);
        NoteRead(grad_, "convert", unit_);
        return StagedTensors{grad_.to(types_.reduce), c->piece};
      },
      out.stages);
  out.stages.push_back({{}, [this, c] {
                          NoteRead(c->piece, "convert", unit_);
                          NoteWrite(OptimGrad(), "convert", unit_);
                          OptimGrad().copy_(c->piece);
                          mesh_.cache().staging()->Give(std::exchange(c->piece, {}));
                        }});
}

Stage FlatBuffer::SumStage(const RedistributionPlan& plan, const Shared& c) const {
  Stage stage;
  if (!plan.steps.empty() && plan.steps[0].kind == StepKind::kAllReduce)
    stage.group = mesh_.Group(plan.steps[0].axes, mesh_.rank());
  stage.run = [this, &plan, c] {
    AllReduceInBuckets(plan, plan_.bucket_bytes, c->piece, mesh_, unit_);
  };
  return stage;
}

void FlatBuffer::ReduceAsInPaper(const Shared& c, bool last, Reduction& out) const {
  if (!c->bucket.defined()) {  // nor is P cut: all micro-batches lie in G
    const bool same = types_.grad == types_.reduce;
    out.stages.push_back(
        {{}, [this, c, same] { c->piece = same ? grad_ : grad_.to(types_.reduce); }});
    out.stages.push_back(SumStage(plan_.reduce, c));
    if (!same)
      out.stages.push_back(
          {{}, [this, c] { OptimGrad().copy_(Part(c->piece, plan_.grad, plan_.optim)); }});
    return;
  }
  if (plan_.scatter.steps.empty()) {
    out.stages.push_back({{}, [c] { c->piece = c->bucket; }});
  } else {
    AddStages(
        scatter_,
        [this, c] {
          c->piece = Part(c->bucket, plan_.gather.dst, plan_.param);
          return StagedTensors{c->bucket, c->piece};
        },
        out.stages);
  }
  // The part of the piece that is G's, or OS's.
  const auto part = [this, c](const Layout& of) { return Part(c->piece, plan_.param, of); };
  if (last) {
    // One rank of those that sum adds what they have accumulated.
    if (c->accumulating)
      out.stages.push_back({{}, [this, part] {
                              NoteRead(grad_, "add accumulated", unit_);
                              NoteWrite(part(plan_.grad), "add accumulated", unit_);
                              part(plan_.grad).add_(grad_);
                            }});
    out.stages.push_back(SumStage(plan_.reduce, c));
  } else {
    out.stages.push_back(SumStage(plan_.accumulate, c));
  }
  out.freed = out.stages.size();
  out.stages.push_back({{}, [this, c, part, last] {
                          NoteRead(c->piece, "accumulate", unit_);
                          NoteWrite(last ? OptimGrad() : grad_, "accumulate", unit_);
                          if (last) {
                            OptimGrad().copy_(part(plan_.optim));
                          } else if (c->accumulating) {
                            grad_.add_(part(plan_.grad));
                          } else {
                            grad_.copy_(part(plan_.grad));
                          }
                          c->Release();
                        }});
}

}  // namespace lins
