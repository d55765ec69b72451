#include "tests/proofs/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>

namespace lins::testing {

struct MemoryMeter::Meter {
  std::mutex mutex;  // a tensor may be freed by another thread than its own
  int64_t live = 0, peak = 0, largest = 0;

  void Add(int64_t bytes) {
    std::lock_guard lock(mutex);
    live += bytes;
    peak = std::max(peak, live);
    largest = std::max(largest, bytes);
  }
};

namespace {

thread_local std::shared_ptr<MemoryMeter::Meter> current;

struct Counted {
  c10::DataPtr data;
  std::shared_ptr<MemoryMeter::Meter> meter;
  int64_t bytes;
};

void Release(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  if (counted->meter) counted->meter->Add(-counted->bytes);
}

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    auto counted = std::make_unique<Counted>(
        Counted{inner_->allocate(bytes), current, static_cast<int64_t>(bytes)});
    if (counted->meter) counted->meter->Add(counted->bytes);
    void* data = counted->data.get();
    return {data, counted.release(), &Release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* inner_;
};

}  // namespace

MemoryMeter::MemoryMeter() : meter_(std::make_shared<Meter>()) {
  static const bool installed = [] {
    c10::SetCPUAllocator(new CountingAllocator(c10::GetCPUAllocator()), /*priority=*/1);
    return true;
  }();
  (void)installed;
  current = meter_;
}

MemoryMeter::~MemoryMeter() { current = nullptr; }

int64_t MemoryMeter::peak() const {
  std::lock_guard lock(meter_->mutex);
  return meter_->peak;
}

int64_t MemoryMeter::largest() const {
  std::lock_guard lock(meter_->mutex);
  return meter_->largest;
}

}  // namespace lins::testing
