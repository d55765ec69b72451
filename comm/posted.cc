#include "comm/posted.h"

#include <ATen/core/Tensor.h>

#include <utility>

#include "comm/delay_queue.h"

namespace lins {
namespace {

class PostedBackend : public Backend {
 public:
  explicit PostedBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  c10::DeviceType device() const override { return backend_->device(); }
  std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                     const Counts& counts, const OpInfo& info) override {
    return Post([=, this] { return backend_->AllGather(out, in, counts, info); });
  }
  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts, const OpInfo& info) override {
    return Post([=, this] { return backend_->ReduceScatter(out, in, op, counts, info); });
  }
  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op,
                                     const OpInfo& info) override {
    return Post([=, this] { return backend_->AllReduce(inout, op, info); });
  }
  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts,
                                    const OpInfo& info) override {
    return Post([=, this] { return backend_->AllToAll(out, in, out_counts, in_counts, info); });
  }
  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                     const OpInfo& info) override {
    return Post([=, this] { return backend_->Broadcast(inout, root, info); });
  }
  std::unique_ptr<Pending> Barrier(const OpInfo& info) override {
    return Post([=, this] { return backend_->Barrier(info); });
  }

  std::vector<int64_t> SentBytes() const override { return backend_->SentBytes(); }

 private:
  std::unique_ptr<Pending> Post(DelayQueue::Launch launch) {
    return queue_.Post(/*seconds=*/0, std::move(launch));
  }

  std::unique_ptr<Backend> backend_;
  DelayQueue queue_;  // ends first: it uses the backend
};

}  // namespace

std::unique_ptr<Backend> Posted(std::unique_ptr<Backend> backend) {
  return std::make_unique<PostedBackend>(std::move(backend));
}

}  // namespace lins
