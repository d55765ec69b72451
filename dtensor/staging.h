// Memory kept between redistributions: a fresh buffer costs an allocation, and a page fault for
// every 4 KiB.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

namespace lins {

// Keeps a few buffers, of exactly the sizes that were asked for, 256 MiB at most unless Limit says
// otherwise. Thread safe.
class Staging : public std::enable_shared_from_this<Staging> {
 public:
  // A contiguous one-dimensional tensor of `numel` elements, its values unspecified. Allocates
  // nothing where one of that size and kind was given back.
  at::Tensor Take(int64_t numel, const at::TensorOptions& options);
  void Give(at::Tensor buffer);
  // Keeps no more than `bytes` from now on; 0: nothing.
  void Limit(int64_t bytes);
  // A contiguous tensor for the caller, its values unspecified. A large one's memory comes back by
  // itself when the last reference to it goes.
  at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options);

 private:
  static constexpr int64_t kLarge = 1 << 20;  // bytes
  static constexpr size_t kKeep = 8;          // buffers
  std::mutex mutex_;
  int64_t keep_bytes_ = 256LL << 20;  // in all of them
  std::vector<at::Tensor> free_;      // the one given back last at the end
};

}  // namespace lins
