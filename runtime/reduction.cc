// How a micro-batch's gradient goes from a flat buffer to G, and after the last one to OS.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "dtensor/execute.h"
#include "mesh/error.h"
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

}  // namespace

struct FlatBuffer::Contribution {
  // Where G is cut: the whole buffer. Elsewhere the gradient was added to G as it came.
  std::shared_ptr<BufferPool::Lease> lease;
  at::Tensor bucket;
  std::vector<bool> written;
  bool accumulating;  // G holds earlier micro-batches

  bool cut() const { return bucket.defined(); }
  void Release() {
    bucket = at::Tensor();
    lease.reset();
  }
};

std::function<void()> FlatBuffer::FinishMicroBatch(bool last, double divisor) {
  if (windows_.empty()) return [] {};
  Target(0);  // a rank without gradients contributes zeros
  auto c = std::make_shared<Contribution>();
  // G without cuts keeps what earlier micro-batches wrote.
  c->written = bucket_.defined() ? arrived_ : used_;
  c->lease = std::move(bucket_lease_);
  c->bucket = std::move(bucket_);
  c->accumulating = accumulating_;
  bucket_lease_.reset();
  bucket_ = at::Tensor();
  std::fill(arrived_.begin(), arrived_.end(), false);
  accumulating_ = true;
  return [this, c, last, divisor] {
    c10::NoGradGuard no_grad;
    if (c->cut() || last) {
      const at::Tensor& target = c->cut() ? c->bucket : grad_;
      ForEachUnwritten(windows_, c->written, plan_.total,
                       [&](int64_t at, int64_t n) { target.narrow(0, at, n).zero_(); });
    }
    if (plan_.family == Family::kPaper) {
      ReduceAsInPaper(*c, last);
    } else {
      ReducePlanned(*c, last);
    }
    if (last && divisor != 1) OptimGrad().div_(divisor);
  };
}

void FlatBuffer::ReducePlanned(Contribution& c, bool last) const {
  if (c.cut()) {
    // Straight into G where it is empty and of the dtype that is sent.
    const bool direct = !c.accumulating && types_.grad == types_.reduce;
    std::shared_ptr<BufferPool::Lease> staging;
    at::Tensor piece = grad_;
    if (!direct) {
      staging = pool_->Acquire(grad_.numel() * c10::elementSize(types_.reduce));
      piece = staging->As(types_.reduce, grad_.numel());
    }
    Execute(*accumulate_, c.bucket, piece);
    c.Release();
    if (c.accumulating) {
      grad_.add_(piece);
    } else if (!direct) {
      grad_.copy_(piece);
    }
  }
  if (!last) return;
  const at::Tensor mine = OptimGrad();
  if (types_.grad == types_.reduce || plan_.reduce.steps.empty()) {
    Execute(*reduce_, grad_, mine);
  } else {
    const at::Tensor sent = grad_.to(types_.reduce);
    mine.copy_(Execute(*reduce_, sent));
  }
}

void FlatBuffer::ReduceAsInPaper(Contribution& c, bool last) const {
  if (!c.cut()) {  // nor is P: all micro-batches lie in G
    if (!last) return;
    if (types_.grad == types_.reduce) {
      AllReduceInBuckets(plan_.reduce, plan_.bucket_bytes, grad_, mesh_, unit_);
    } else {
      const at::Tensor sent = grad_.to(types_.reduce);
      AllReduceInBuckets(plan_.reduce, plan_.bucket_bytes, sent, mesh_, unit_);
      OptimGrad().copy_(OptimSlice(sent, plan_.param));
    }
    return;
  }
  std::shared_ptr<BufferPool::Lease> staging;
  at::Tensor piece = c.bucket;
  if (!plan_.scatter.steps.empty()) {
    const int64_t n = plan_.total / Product(plan_.policy.param);
    staging = pool_->Acquire(n * c10::elementSize(types_.reduce));
    piece = staging->As(types_.reduce, n);
    Execute(*scatter_, c.bucket, piece);
    c.Release();
  }
  // The part of the piece that is G's, or OS's.
  const auto part = [&](const Layout& of) {
    const Range p = plan_.param.RangesOf(mesh_.rank())[0], r = of.RangesOf(mesh_.rank())[0];
    return piece.narrow(0, r.first - p.first, r.second - r.first);
  };
  if (last) {
    // One rank of those that sum adds what they have accumulated.
    if (c.accumulating) part(plan_.grad).add_(grad_);
    AllReduceInBuckets(plan_.reduce, plan_.bucket_bytes, piece, mesh_, unit_);
    OptimGrad().copy_(part(plan_.optim));
    return;
  }
  AllReduceInBuckets(plan_.accumulate, plan_.bucket_bytes, piece, mesh_, unit_);
  if (c.accumulating) {
    grad_.add_(part(plan_.grad));
  } else {
    grad_.copy_(part(plan_.grad));
  }
}

}  // namespace lins
