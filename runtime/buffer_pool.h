// Memory for buffers that live only while a unit computes or reduces. What one unit gives back the
// next one takes, so the peak does not grow with the depth of the model and steady state allocates
// nothing.
//
// On a device memory is given back when the host gets there, while streams still use it. An event
// is recorded then, on the stream that is the last to use it, and Lease::Begin makes the next
// taker's stream wait for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/stream_memory.h"

namespace lins {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(at::Device device) : device_(device), memory_(device) {}
  ~BufferPool();
  at::Device device() const { return device_; }
  c10::Device queue() const { return memory_.queue(); }

  // Memory on loan; goes back to the pool with the last reference. That is dropped by the stream
  // that is the last to use it, or after a wait for the one that is.
  class Lease {
   public:
    Lease(std::shared_ptr<BufferPool> pool, StreamMemory::Block block)
        : pool_(std::move(pool)), block_(std::move(block)) {}
    ~Lease() { pool_->Return(std::move(block_)); }
    Lease(const Lease&) = delete;
    // Before the memory is used: the current stream waits until those before are done with it.
    void Begin() const { block_.last.Wait(); }
    void* data() const { return block_.tensor.mutable_data_ptr(); }
    // The memory as a 1-D tensor.
    at::Tensor As(at::ScalarType dtype, int64_t numel) const;

   private:
    std::shared_ptr<BufferPool> pool_;
    StreamMemory::Block block_;
  };
  std::shared_ptr<Lease> Acquire(int64_t nbytes);

  struct Stats {
    int64_t live_leases = 0, peak_leases = 0;
    int64_t live_bytes = 0, peak_bytes = 0;
    int64_t pooled_bytes = 0;  // allocated, lent or not
  };
  Stats stats() const;

 private:
  void Return(StreamMemory::Block block);

  at::Device device_;
  StreamMemory memory_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<StreamMemory::Block>> free_;  // by size
  Stats stats_;
};

}  // namespace lins
