// A pass over arrays in host memory whose work is done on the device, chunk by chunk:
//
//   HostPass pass(pool, /*concurrent=*/true);
//   pass.Reserve(bytes_of_the_largest_chunk);
//   pass.Run({{{master, exp_avg}, [](const auto& at) { update(at[0], at[1]); }}, ...});
//   pass.Release();
//
// While one chunk is worked on, the next is copied in and the one before is copied back, each copy
// on a stream of its own: the device holds three chunks, whatever the length of the arrays. On a
// CPU the device is host memory as well, and the same copies are made in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "comm/stream.h"
#include "lins_policy/optimizer_time.h"
#include "runtime/buffer_pool.h"

namespace lins {

// Options of a tensor in host memory for a device: pinned where there is more than a CPU.
at::TensorOptions InHostMemory(at::TensorOptions like);

class HostPass {
 public:
  // Not concurrent: copies are made where they are asked for.
  HostPass(std::shared_ptr<BufferPool> pool, bool concurrent);

  struct Chunk {
    std::vector<at::Tensor> arrays;  // 1-D and contiguous, in host memory
    // Gets them on the device, to read and to write. It is called in the calling thread, in the
    // order of the chunks. Without arrays nothing is copied: work between those before and after.
    std::function<void(const std::vector<at::Tensor>& on_device)> work;
  };

  // Bytes that an array of so many takes in a chunk.
  static int64_t Padded(int64_t nbytes) { return (nbytes + 63) / 64 * 64; }
  // Takes the buffers for chunks of at most so many padded bytes. Throws where there is no memory.
  void Reserve(int64_t chunk_bytes);
  void Release();
  int64_t chunk_bytes() const { return chunk_bytes_; }

  // Returns when all is copied back. Throws what work or a copy threw; chunks before that one are
  // copied back then, it and those after it are not, and nothing is under way any more.
  void Run(std::vector<Chunk> chunks);

  // Copied so far: what the work of a chunk may rely on, or be tested by.
  int64_t bytes_in() const { return in_bytes_; }
  int64_t bytes_out() const { return out_bytes_; }

 private:
  std::vector<at::Tensor> Place(size_t buffer, const std::vector<at::Tensor>& arrays) const;

  std::shared_ptr<BufferPool> pool_;
  int64_t chunk_bytes_ = 0;
  std::vector<std::shared_ptr<BufferPool::Lease>> buffers_;
  std::atomic<int64_t> in_bytes_ = 0, out_bytes_ = 0;
  Stream in_, out_;  // last: their threads end before what their tasks use
};

}  // namespace lins
