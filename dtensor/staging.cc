#include "dtensor/staging.h"

#include <ATen/ATen.h>

#include <utility>

#include "comm/order_checker.h"

namespace lins {

Staging::~Staging() { Free(std::move(free_)); }

void Staging::Free(Dropped dropped) {
  for (Block& block : dropped) memory_->Free(std::move(block));
}

at::Tensor Staging::Take(int64_t numel, const at::TensorOptions& options, int64_t room) {
  Block block;
  Dropped dropped;
  {
    std::lock_guard lock(mutex_);
    if (!memory_) memory_.emplace(options.device());
    for (size_t i = free_.size(); i-- > 0;) {
      const at::Tensor& t = free_[i].tensor;
      if (t.numel() != numel || t.dtype() != options.dtype() || t.device() != options.device()) {
        continue;
      }
      block = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<int64_t>(i));
      break;
    }
    if (!block.tensor.defined()) {
      dropped = Trim(kKeep, room - numel * static_cast<int64_t>(options.dtype().itemsize()));
    }
  }
  if (!block.tensor.defined()) {
    Free(std::move(dropped));
    block = memory_->Allocate(numel, options);
  }
  block.last.Wait();
  return std::move(block.tensor);
}

void Staging::Give(at::Tensor buffer) {
  if (!buffer.defined()) return;
  Block block{std::move(buffer), {}};
  block.last = Event::Here(QueueOf(block.tensor.device()));
  Dropped dropped;
  {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(block));
    dropped = Trim(kKeep, kKeepBytes);
  }
  Free(std::move(dropped));
}

Staging::Dropped Staging::Trim(size_t buffers, int64_t bytes) {
  Dropped dropped;
  int64_t kept = 0;
  for (const Block& b : free_) kept += static_cast<int64_t>(b.tensor.nbytes());
  while (!free_.empty() && (free_.size() > buffers || kept > bytes)) {
    kept -= static_cast<int64_t>(free_.front().tensor.nbytes());
    dropped.push_back(std::move(free_.front()));
    free_.erase(free_.begin());
  }
  return dropped;
}

at::Tensor Staging::Empty(at::IntArrayRef sizes, const at::TensorOptions& options, int64_t room) {
  const int64_t numel = c10::multiply_integers(sizes);
  const auto bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  // A device's allocator keeps memory by itself, and it is one stream that makes the result and
  // hands it to the caller.
  if (!QueueOf(options.device()).is_cpu() || bytes < kLarge) {
    Dropped dropped;
    {
      std::lock_guard lock(mutex_);
      dropped = Trim(kKeep, room - bytes);
    }
    Free(std::move(dropped));
    return at::empty(sizes, options);
  }
  at::Tensor buffer = Take(numel, options, room);
  void* data = buffer.mutable_data_ptr();
  auto back = [pool = shared_from_this(), buffer = std::move(buffer)](void*) mutable {
    pool->Give(std::move(buffer));
  };
  return at::from_blob(data, sizes, back, options);
}

}  // namespace lins
