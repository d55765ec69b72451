#include "comm/c10d_backend.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/backend.h"
#include "kernels/element.h"

namespace lins {
namespace {

c10d::ReduceOp ToC10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:  // divided afterwards
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    default:
      throw std::runtime_error(
          absl::StrCat("this transport reduces with sum, avg, min, max and "
                       "product, not ",
                       ReduceOpName(op)));
  }
}

// acc = acc op next, on tensors.
void Accumulate(at::Tensor& acc, const at::Tensor& next, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      acc = at::minimum(acc, next);
      return;
    case ReduceOp::kMax:
      acc = at::maximum(acc, next);
      return;
    case ReduceOp::kProduct:
      acc.mul_(next);
      return;
    default:
      acc.add_(next);
  }
}

// The k contributions of `staging`, in rank order, by a single kernel. False where there is none.
bool FoldOnDevice(const at::Tensor& to, const at::Tensor& staging, int64_t k, ReduceOp op) {
  const std::optional<device::Element> element = ElementOf(to.scalar_type());
  if (!to.is_cuda() || !device::Compiled() || !element) return false;
  const device::Fold fold = op == ReduceOp::kMin       ? device::Fold::kMin
                            : op == ReduceOp::kMax     ? device::Fold::kMax
                            : op == ReduceOp::kProduct ? device::Fold::kProduct
                                                       : device::Fold::kSum;
  const double divisor = op == ReduceOp::kAvg ? static_cast<double>(k) : 1;
  device::ReduceInOrder(to.mutable_data_ptr(), staging.const_data_ptr(), k, to.numel(), to.numel(),
                        *element, fold, divisor);
  return true;
}

bool Equal(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t c) { return c == counts[0]; });
}

std::vector<at::Tensor> Parts(const at::Tensor& flat, const Counts& counts) {
  return flat.split_with_sizes(counts);
}

// The handle of an operation, or of all that were coalesced with it.
struct Handle {
  bool open = false;                    // more may be coalesced
  c10::intrusive_ptr<c10d::Work> work;  // null: nothing was to be done
  std::exception_ptr error;             // from launching what was coalesced
};

// A c10d operation, and what remains to be done once the current stream has it.
class C10dPending : public Pending {
 public:
  C10dPending(std::shared_ptr<Handle> handle, std::function<void()> then)
      : handle_(std::move(handle)), then_(std::move(then)) {}
  void Wait(double) override {
    if (handle_->open) throw std::runtime_error("waited for before its group of operations ended");
    if (handle_->error) std::rethrow_exception(handle_->error);
    if (handle_->work && !handle_->work->wait()) throw std::runtime_error("aborted");
    at::NoGradGuard no_grad;
    if (then_) std::exchange(then_, nullptr)();
  }
  bool Done() override {
    return !handle_->open && (!handle_->work || handle_->work->isCompleted());
  }
  bool Confirmed() override {
    if (handle_->error) std::rethrow_exception(handle_->error);
    if (!handle_->work) return !handle_->open;
    if (!handle_->work->isCompleted()) return false;
    if (handle_->work->exception()) std::rethrow_exception(handle_->work->exception());
    return true;
  }

 private:
  const std::shared_ptr<Handle> handle_;
  std::function<void()> then_;
};

class C10dBackend : public Backend {
 public:
  C10dBackend(c10::intrusive_ptr<c10d::Backend> group, int64_t index, c10::DeviceType device)
      : group_(std::move(group)), index_(index), device_(device) {}

  c10::DeviceType device() const override { return device_; }
  bool asynchronous() const override { return true; }

  void BeginGroup() override {
    if (!group_->supportsCoalescing()) return;
    group_->startCoalescing();
    coalesced_ = std::make_shared<Handle>();
    coalesced_->open = true;
  }

  void EndGroup() override {
    if (!coalesced_) return;
    try {
      coalesced_->work = group_->endCoalescing();
    } catch (...) {
      coalesced_->error = std::current_exception();
    }
    coalesced_->open = false;
    coalesced_.reset();
  }

  std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                     const Counts& counts, const OpInfo&) override {
    at::NoGradGuard no_grad;
    at::Tensor to = out.detach().view(-1), from = in.detach().view(-1);
    if (Equal(counts)) return Start(group_->_allgather_base(to, from));
    std::vector<std::vector<at::Tensor>> outs = {Parts(to, counts)};
    std::vector<at::Tensor> ins = {from};
    return Start(group_->allgather(outs, ins));
  }

  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts, const OpInfo&) override {
    at::NoGradGuard no_grad;
    at::Tensor to = out.detach().view(-1), from = in.detach().view(-1);
    c10d::ReduceScatterOptions options;
    options.reduceOp = ToC10d(op);
    if (Equal(counts)) {
      return Start(group_->_reduce_scatter_base(to, from, options), Division(to, op));
    }
    const int64_t k = group_->getSize(), n = counts[index_];
    at::Tensor staging = at::empty({k * n}, from.options());
    std::vector<int64_t> out_counts(k, n), in_counts = counts;
    return Start(group_->alltoall_base(staging, from, out_counts, in_counts), [staging, to, op, k] {
      if (FoldOnDevice(to, staging, k, op)) return;
      const auto type = to.scalar_type();
      const bool narrow = type == at::kHalf || type == at::kBFloat16;
      const std::vector<at::Tensor> parts =
          (narrow ? staging.to(at::kFloat) : staging).view({k, -1}).unbind(0);
      at::Tensor acc = parts[0];
      for (int64_t r = 1; r < k; ++r) Accumulate(acc, parts[r], op);
      if (op == ReduceOp::kAvg) acc.div_(k);
      to.copy_(acc);
    });
  }

  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op, const OpInfo&) override {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> tensors = {inout.detach().view(-1)};
    c10d::AllreduceOptions options;
    options.reduceOp = ToC10d(op);
    return Start(group_->allreduce(tensors, options), Division(tensors[0], op));
  }

  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts,
                                    const OpInfo&) override {
    at::NoGradGuard no_grad;
    at::Tensor to = out.detach().view(-1), from = in.detach().view(-1);
    std::vector<int64_t> outs = out_counts, ins = in_counts;
    return Start(group_->alltoall_base(to, from, outs, ins));
  }

  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                     const OpInfo&) override {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> tensors = {inout.detach().view(-1)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return Start(group_->broadcast(tensors, options));
  }

  std::unique_ptr<Pending> Barrier(const OpInfo&) override {
    std::vector<at::Tensor> tensors = {at::zeros({1}, at::TensorOptions(device_))};
    return Start(group_->allreduce(tensors), [token = tensors[0]] { (void)token.cpu(); });
  }

 private:
  // Of what is coalesced, c10d's own handles mean nothing.
  std::unique_ptr<Pending> Start(c10::intrusive_ptr<c10d::Work> work,
                                 std::function<void()> then = nullptr) const {
    std::shared_ptr<Handle> handle = coalesced_;
    if (!handle) handle = std::make_shared<Handle>(Handle{false, std::move(work), nullptr});
    return std::make_unique<C10dPending>(std::move(handle), std::move(then));
  }

  std::function<void()> Division(const at::Tensor& tensor, ReduceOp op) const {
    if (op != ReduceOp::kAvg) return nullptr;
    return [tensor, k = group_->getSize()] { at::Tensor(tensor).div_(k); };
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  const int64_t index_;
  const c10::DeviceType device_;
  std::shared_ptr<Handle> coalesced_;  // between BeginGroup and EndGroup
};

}  // namespace

std::unique_ptr<Backend> MakeC10dBackend(c10::intrusive_ptr<c10d::Backend> group, int64_t index,
                                         c10::DeviceType device) {
  return std::make_unique<C10dBackend>(std::move(group), index, device);
}

}  // namespace lins
