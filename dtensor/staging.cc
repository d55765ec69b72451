#include "dtensor/staging.h"

#include <ATen/ATen.h>

#include <utility>

namespace lins {

at::Tensor Staging::Take(int64_t numel, const at::TensorOptions& options, int64_t room) {
  Dropped dropped;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = free_.size(); i-- > 0;) {
      const at::Tensor& t = free_[i];
      if (t.numel() != numel || t.dtype() != options.dtype() || t.device() != options.device()) {
        continue;
      }
      at::Tensor found = std::move(free_[i]);
      free_.erase(free_.begin() + static_cast<int64_t>(i));
      return found;
    }
    dropped = Trim(kKeep, room - numel * static_cast<int64_t>(options.dtype().itemsize()));
  }
  dropped.clear();
  return at::empty({numel}, options);
}

void Staging::Give(at::Tensor buffer) {
  // A device's allocator keeps memory by itself, and knows which streams still use it.
  if (!buffer.defined() || !buffer.is_cpu()) return;
  Dropped dropped;
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
  dropped = Trim(kKeep, kKeepBytes);
}

Staging::Dropped Staging::Trim(size_t buffers, int64_t bytes) {
  Dropped dropped;
  int64_t kept = 0;
  for (const at::Tensor& t : free_) kept += static_cast<int64_t>(t.nbytes());
  while (!free_.empty() && (free_.size() > buffers || kept > bytes)) {
    kept -= static_cast<int64_t>(free_.front().nbytes());
    dropped.push_back(std::move(free_.front()));
    free_.erase(free_.begin());
  }
  return dropped;
}

at::Tensor Staging::Empty(at::IntArrayRef sizes, const at::TensorOptions& options, int64_t room) {
  const int64_t numel = c10::multiply_integers(sizes);
  const auto bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  if (!options.device().is_cpu() || bytes < kLarge) {
    Dropped dropped;
    {
      std::lock_guard lock(mutex_);
      dropped = Trim(kKeep, room - bytes);
    }
    dropped.clear();
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
