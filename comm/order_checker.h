// For tests: what sees every use of memory that streams share, and can tell whether they are in
// order. On a CPU compute is over before communication begins, so a missing wait between the two
// goes unnoticed there; a simulated device (tests/comm/simulated_device.h) finds it.
//
// Outside of tests there is none, and a note costs the test of a pointer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <string>

#include "absl/strings/string_view.h"

namespace lins {

class OrderChecker {
 public:
  virtual ~OrderChecker() = default;
  // The device whose streams order work on host memory.
  virtual c10::Device queue() const = 0;
  // A stream that lins has taken, and what it is for.
  virtual void Name(int64_t stream, const std::string& name) = 0;
  // The collective that the calling thread hands to the transport next.
  virtual void Announce(absl::string_view op, absl::string_view role, const std::string& unit) = 0;
  // What the calling thread queues on its current stream uses this memory.
  enum class Use { kRead, kWrite };
  virtual void Note(Use use, const void* data, size_t bytes, absl::string_view what,
                    const std::string& unit) = 0;
};

// Null except in tests.
extern std::atomic<OrderChecker*> order_checker;

// The device whose streams order work on tensors of `device`: that device, and the host's own
// (where there are no streams) for host memory.
inline c10::Device QueueOf(c10::Device device) {
  const OrderChecker* checker = order_checker.load(std::memory_order_relaxed);
  return checker != nullptr && device.is_cpu() ? checker->queue() : device;
}

inline void NoteUse(OrderChecker::Use use, const at::Tensor& tensor, absl::string_view what,
                    const std::string& unit) {
  OrderChecker* checker = order_checker.load(std::memory_order_relaxed);
  if (checker == nullptr || !tensor.defined() || tensor.numel() == 0) return;
  checker->Note(use, tensor.const_data_ptr(), tensor.nbytes(), what, unit);
}
inline void NoteRead(const at::Tensor& tensor, absl::string_view what, const std::string& unit) {
  NoteUse(OrderChecker::Use::kRead, tensor, what, unit);
}
inline void NoteWrite(const at::Tensor& tensor, absl::string_view what, const std::string& unit) {
  NoteUse(OrderChecker::Use::kWrite, tensor, what, unit);
}

}  // namespace lins
