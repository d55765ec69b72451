// Counting what a thread's tensors take.
#pragma once

#include <cstdint>
#include <memory>

namespace lins::testing {

// While it lives, counts the bytes of CPU tensors that this thread allocates. Installs a counting
// allocator on first use: make the first one before other threads run.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;

  int64_t peak() const;     // the most alive at once, of those allocated since construction
  int64_t largest() const;  // the largest single one

  struct Meter;

 private:
  std::shared_ptr<Meter> meter_;
};

}  // namespace lins::testing
