#include "runtime/buffer_pool.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace lins {

at::Tensor BufferPool::Lease::As(at::ScalarType dtype, int64_t numel) const {
  const int64_t nbytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return block_.tensor.narrow(0, 0, nbytes).view(dtype);
}

std::shared_ptr<BufferPool::Lease> BufferPool::Acquire(int64_t nbytes) {
  StreamMemory::Block block;
  {
    std::lock_guard lock(mutex_);
    auto& list = free_[nbytes];
    if (!list.empty()) {
      block = std::move(list.back());
      list.pop_back();
    }
  }
  const bool made = !block.tensor.defined();
  if (made) block = memory_.Allocate(nbytes, at::TensorOptions().dtype(at::kByte).device(device_));
  {
    std::lock_guard lock(mutex_);
    if (made) stats_.pooled_bytes += nbytes;
    stats_.live_bytes += nbytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    stats_.peak_leases = std::max(stats_.peak_leases, ++stats_.live_leases);
  }
  return std::make_shared<Lease>(shared_from_this(), std::move(block));
}

BufferPool::~BufferPool() {
  for (auto& [nbytes, list] : free_) {
    for (StreamMemory::Block& block : list) memory_.Free(std::move(block));
  }
}

void BufferPool::Return(StreamMemory::Block block) {
  block.last = Event::Here(queue());
  std::lock_guard lock(mutex_);
  const int64_t nbytes = block.tensor.numel();
  stats_.live_bytes -= nbytes;
  --stats_.live_leases;
  free_[nbytes].push_back(std::move(block));
}

BufferPool::Stats BufferPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace lins
