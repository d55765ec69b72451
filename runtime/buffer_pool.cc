#include "runtime/buffer_pool.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lins {

at::Tensor BufferPool::Lease::As(at::ScalarType dtype, int64_t numel) const {
  const int64_t nbytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return bytes_.narrow(0, 0, nbytes).view(dtype);
}

std::shared_ptr<BufferPool::Lease> BufferPool::Acquire(int64_t nbytes) {
  at::Tensor bytes;
  {
    std::lock_guard lock(mutex_);
    stats_.live_bytes += nbytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    stats_.peak_leases = std::max(stats_.peak_leases, ++stats_.live_leases);
    auto& list = free_[nbytes];
    if (!list.empty()) {
      bytes = std::move(list.back());
      list.pop_back();
    } else {
      stats_.pooled_bytes += nbytes;
    }
  }
  if (!bytes.defined())
    bytes = at::empty({nbytes}, at::TensorOptions().dtype(at::kByte).device(device_));
  return std::make_shared<Lease>(shared_from_this(), std::move(bytes));
}

void BufferPool::Return(at::Tensor bytes) {
  std::lock_guard lock(mutex_);
  const int64_t nbytes = bytes.numel();
  stats_.live_bytes -= nbytes;
  --stats_.live_leases;
  free_[nbytes].push_back(std::move(bytes));
}

BufferPool::Stats BufferPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace lins
