#include "dtensor/staging.h"

#include <ATen/ATen.h>

#include <utility>

namespace lins {

at::Tensor Staging::Take(int64_t numel, const at::TensorOptions& options) {
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
  }
  return at::empty({numel}, options);
}

void Staging::Give(at::Tensor buffer) {
  // A device's allocator keeps memory by itself, and knows which streams still use it.
  if (!buffer.defined() || !buffer.is_cpu()) return;
  std::vector<at::Tensor> dropped;  // after the lock
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
  int64_t bytes = 0;
  for (const at::Tensor& t : free_) bytes += static_cast<int64_t>(t.nbytes());
  while (free_.size() > kKeep || (bytes > kKeepBytes && !free_.empty())) {
    bytes -= static_cast<int64_t>(free_.front().nbytes());
    dropped.push_back(std::move(free_.front()));
    free_.erase(free_.begin());
  }
}

at::Tensor Staging::Empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const int64_t numel = c10::multiply_integers(sizes);
  const auto bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  if (!options.device().is_cpu() || bytes < kLarge) return at::empty(sizes, options);
  at::Tensor buffer = Take(numel, options);
  void* data = buffer.mutable_data_ptr();
  auto back = [pool = shared_from_this(), buffer = std::move(buffer)](void*) mutable {
    pool->Give(std::move(buffer));
  };
  return at::from_blob(data, sizes, back, options);
}

}  // namespace lins
