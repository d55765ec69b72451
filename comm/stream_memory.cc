#include "comm/stream_memory.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "comm/order_checker.h"

namespace lins {

StreamMemory::StreamMemory(c10::Device device) : queue_(QueueOf(device)) {}

StreamMemory::~StreamMemory() = default;

StreamMemory::Block StreamMemory::Allocate(int64_t numel, const at::TensorOptions& options) {
  if (queue_.is_cpu()) return {at::empty({numel}, options), {}};
  std::call_once(once_, [this] {
    home_ = std::make_unique<c10::Stream>(
        c10::impl::VirtualGuardImpl(queue_.type()).getStreamFromGlobalPool(queue_));
    if (OrderChecker* checker = order_checker) checker->Name(home_->id(), "memory");
  });
  const c10::StreamGuard on(*home_);
  at::Tensor tensor = at::empty({numel}, options);
  return {std::move(tensor), Event::Here(queue_)};
}

void StreamMemory::Free(Block block) {
  if (!home_ || !block.tensor.defined()) return;
  const c10::StreamGuard on(*home_);
  block.last.Wait();
  block.tensor.reset();
}

}  // namespace lins
