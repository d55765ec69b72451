#include "comm/host_staged.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace lins {
namespace {

class StagedPending : public Pending {
 public:
  StagedPending(std::unique_ptr<Pending> pending, at::Tensor out, at::Tensor result, at::Tensor in)
      : pending_(std::move(pending)),
        out_(std::move(out)),
        result_(std::move(result)),
        in_(std::move(in)) {}
  void Wait(double timeout_seconds) override {
    pending_->Wait(timeout_seconds);
    c10::NoGradGuard no_grad;
    if (out_.defined()) out_.copy_(result_);
  }
  bool Done() override { return pending_->Done(); }

 private:
  std::unique_ptr<Pending> pending_;
  at::Tensor out_, result_, in_;  // the host's live as long as the operation
};

class HostStaged : public Backend {
 public:
  HostStaged(std::unique_ptr<Backend> host, c10::DeviceType device)
      : host_(std::move(host)), device_(device) {}

  c10::DeviceType device() const override { return device_; }

  std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                     const Counts& counts, const OpInfo& info) override {
    return Start(out, in.detach().cpu(), [&](const at::Tensor& to, const at::Tensor& from) {
      return host_->AllGather(to, from, counts, info);
    });
  }
  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts, const OpInfo& info) override {
    return Start(out, in.detach().cpu(), [&](const at::Tensor& to, const at::Tensor& from) {
      return host_->ReduceScatter(to, from, op, counts, info);
    });
  }
  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts,
                                    const OpInfo& info) override {
    return Start(out, in.detach().cpu(), [&](const at::Tensor& to, const at::Tensor& from) {
      return host_->AllToAll(to, from, out_counts, in_counts, info);
    });
  }
  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op,
                                     const OpInfo& info) override {
    return InPlace(inout, [&](const at::Tensor& here) { return host_->AllReduce(here, op, info); });
  }
  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                     const OpInfo& info) override {
    return InPlace(inout,
                   [&](const at::Tensor& here) { return host_->Broadcast(here, root, info); });
  }
  std::unique_ptr<Pending> Barrier(const OpInfo& info) override { return host_->Barrier(info); }
  std::vector<int64_t> SentBytes() const override { return host_->SentBytes(); }

 private:
  template <typename Fn>
  static std::unique_ptr<Pending> Start(const at::Tensor& out, at::Tensor in, Fn fn) {
    c10::NoGradGuard no_grad;
    const at::Tensor to = out.detach();
    at::Tensor here = at::empty(to.sizes(), to.options().device(at::kCPU));
    auto pending = fn(here, in);
    return std::make_unique<StagedPending>(std::move(pending), to, std::move(here), std::move(in));
  }
  template <typename Fn>
  static std::unique_ptr<Pending> InPlace(const at::Tensor& inout, Fn fn) {
    c10::NoGradGuard no_grad;
    const at::Tensor to = inout.detach();
    at::Tensor here = to.to(at::kCPU, to.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    auto pending = fn(here);
    return std::make_unique<StagedPending>(std::move(pending), to, std::move(here), at::Tensor());
  }

  const std::unique_ptr<Backend> host_;
  const c10::DeviceType device_;
};

}  // namespace

std::unique_ptr<Backend> StageThroughHost(std::unique_ptr<Backend> host, c10::DeviceType device) {
  return std::make_unique<HostStaged>(std::move(host), device);
}

}  // namespace lins
