#include "comm/stream.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "comm/order_checker.h"

namespace lins {

std::atomic<OrderChecker*> order_checker = nullptr;

namespace {

std::atomic<int64_t> next_issue = 1;
thread_local int64_t running_issue = 0;  // 0: no task

}  // namespace

c10::Stream CurrentStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

int64_t IssueNumber() { return running_issue > 0 ? running_issue : next_issue++; }

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  // Of a device: what was queued up to the end of the task. Set before the state is shared.
  std::optional<c10::Stream> stream;
  std::optional<c10::Event> queued;

  void Finish(std::exception_ptr e) {
    std::lock_guard lock(mutex);
    error = e;
    done = true;
    changed.notify_all();
  }
  void Record(const c10::Stream& on) {
    stream = on;
    queued.emplace(on.device_type());
    queued->record(on);
  }
  // On the host.
  void Await() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return done; });
    if (error) std::rethrow_exception(error);
  }
};

Event Event::Here(c10::Device queue) { return queue.is_cpu() ? Event() : Of(CurrentStream(queue)); }

Event Event::Of(const c10::Stream& stream) {
  auto state = std::make_shared<State>();
  state->Record(stream);
  state->done = true;
  return Event(std::move(state));
}

void Event::Wait() const {
  if (!state_) return;
  state_->Await();
  if (!state_->queued) return;
  const c10::Stream current = CurrentStream(state_->stream->device());
  if (current != *state_->stream) state_->queued->block(current);
}

void Event::Synchronize() const {
  if (!state_) return;
  state_->Await();
  if (state_->queued) state_->queued->synchronize();
}

bool Event::Done() const {
  if (!state_) return true;
  std::lock_guard lock(state_->mutex);
  return state_->done && (!state_->queued || state_->queued->query());
}

Stream::Stream(bool concurrent, c10::Device queue, std::string name)
    : concurrent_(concurrent), queue_(queue), name_(std::move(name)) {}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Event Stream::Run(std::function<void()> task, After after) {
  Item item{std::move(task), std::make_shared<Event::State>(), IssueNumber()};
  if (!queue_.is_cpu()) return RunOnDevice(std::move(item), after);
  const Event event(item.state);
  if (!concurrent_) {
    Execute(item);
    return event;
  }
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(item));
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  changed_.notify_all();
  return event;
}

Event Stream::RunOnDevice(Item item, After after) {
  const c10::Stream caller = CurrentStream(queue_);
  if (!concurrent_) {
    Execute(item);
    item.state->Record(caller);
    return Event(std::move(item.state));
  }
  {
    std::lock_guard lock(mutex_);
    if (!side_) {
      const c10::impl::VirtualGuardImpl device(queue_.type());
      side_ = std::make_unique<c10::Stream>(
          device.getStreamFromGlobalPool(queue_, /*isHighPriority=*/true));
      if (OrderChecker* checker = order_checker) checker->Name(side_->id(), name_);
    }
  }
  if (after == After::kCaller) {
    c10::Event begun(queue_.type());
    begun.record(caller);
    begun.block(*side_);
  }
  const c10::StreamGuard on(*side_);
  Execute(item);
  item.state->Record(*side_);
  return Event(std::move(item.state));
}

void Stream::Execute(Item& item) {
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    error = failure_;
  }
  if (!error) {
    try {
      c10::NoGradGuard no_grad;
      const int64_t outer = std::exchange(running_issue, item.issue);
      const absl::Cleanup restore = [outer] { running_issue = outer; };
      item.task();
    } catch (...) {
      error = std::current_exception();
      std::lock_guard lock(mutex_);
      failure_ = error;
    }
  }
  item.task = nullptr;  // what it holds goes before anybody is told
  item.state->Finish(error);
}

void Stream::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    Execute(item);
    item = Item();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

bool Stream::Idle() const {
  std::lock_guard lock(mutex_);
  return waiting_.empty() && !busy_ && !failure_;
}

void Stream::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
  if (!side_) return;
  const c10::Stream side = *side_;
  lock.unlock();
  side.synchronize();
}

void Stream::Reset() {
  Drain();
  std::lock_guard lock(mutex_);
  failure_ = nullptr;
}

}  // namespace lins
