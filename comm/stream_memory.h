// Memory that goes from stream to stream of a device.
//
// A device's allocator hands freed memory to whoever allocates next on the stream that it was
// allocated on, and knows of no other. So here all memory is allocated on one stream that carries
// nothing but waits: for the last use of what is freed, before it is freed. Nobody else waits.
// On the host it is plain memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "comm/stream.h"

namespace lins {

class StreamMemory {
 public:
  // Of tensors on `device`.
  explicit StreamMemory(c10::Device device);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;

  // A tensor, and what has to be waited for by the stream that uses it first. Who is done with it
  // sets `last` to an event behind its own use.
  struct Block {
    at::Tensor tensor;
    Event last;
  };
  Block Allocate(int64_t numel, const at::TensorOptions& options);
  void Free(Block block);
  // The streams of the device; the host where there are none.
  c10::Device queue() const { return queue_; }

 private:
  const c10::Device queue_;
  std::once_flag once_;
  std::unique_ptr<c10::Stream> home_;  // of a device, from the first allocation on
};

}  // namespace lins
