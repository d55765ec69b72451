// Memory kept between redistributions: a fresh buffer costs an allocation, and a page fault for
// every 4 KiB.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/stream_memory.h"

namespace lins {

// Keeps a few buffers, of exactly the sizes that were asked for, 256 MiB at most. Thread safe. On a
// device a buffer may be taken by one stream and given back by another: who takes it next waits.
class Staging : public std::enable_shared_from_this<Staging> {
 public:
  ~Staging();
  // A contiguous one-dimensional tensor of `numel` elements, its values unspecified. Allocates
  // nothing where one of that size and kind was given back; otherwise what is kept makes room
  // first: with the new one it takes no more than `room` bytes, if need be nothing is kept.
  at::Tensor Take(int64_t numel, const at::TensorOptions& options, int64_t room);
  // By the stream that is the last to use it; undefined tensors are ignored.
  void Give(at::Tensor buffer);
  // A contiguous tensor for the caller, its values unspecified. A large one's memory comes back by
  // itself when the last reference to it goes.
  at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options, int64_t room);

 private:
  using Block = StreamMemory::Block;
  using Dropped = std::vector<Block>;  // to be let go after the lock
  void Free(Dropped dropped);
  // Drops the oldest until at most so many buffers and bytes are kept. The mutex is held.
  Dropped Trim(size_t buffers, int64_t bytes);
  static constexpr int64_t kLarge = 1 << 20;          // bytes
  static constexpr size_t kKeep = 8;                  // buffers
  static constexpr int64_t kKeepBytes = 256LL << 20;  // in all of them
  std::mutex mutex_;
  std::optional<StreamMemory> memory_;  // made by the first Take
  std::vector<Block> free_;             // the one given back last at the end
};

}  // namespace lins
