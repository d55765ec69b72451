// Memory for buffers that live only while a unit computes or reduces. What one unit gives back the
// next one takes, so the peak does not grow with the depth of the model and steady state allocates
// nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace lins {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}
  at::Device device() const { return device_; }

  // Memory on loan; goes back to the pool with the last reference.
  class Lease {
   public:
    Lease(std::shared_ptr<BufferPool> pool, at::Tensor bytes)
        : pool_(std::move(pool)), bytes_(std::move(bytes)) {}
    ~Lease() { pool_->Return(std::move(bytes_)); }
    Lease(const Lease&) = delete;
    void* data() const { return bytes_.mutable_data_ptr(); }
    // The memory as a 1-D tensor.
    at::Tensor As(at::ScalarType dtype, int64_t numel) const;

   private:
    std::shared_ptr<BufferPool> pool_;
    at::Tensor bytes_;
  };
  std::shared_ptr<Lease> Acquire(int64_t nbytes);

  struct Stats {
    int64_t live_leases = 0, peak_leases = 0;
    int64_t live_bytes = 0, peak_bytes = 0;
    int64_t pooled_bytes = 0;  // allocated, lent or not
  };
  Stats stats() const;

 private:
  void Return(at::Tensor bytes);

  at::Device device_;
  mutable std::mutex mutex_;
  std::map<int64_t, std::vector<at::Tensor>> free_;  // by size
  Stats stats_;
};

}  // namespace lins
