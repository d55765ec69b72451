#include "comm/stream.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace lins {

namespace {

std::atomic<int64_t> next_issue = 1;
thread_local int64_t running_issue = 0;  // 0: no task

}  // namespace

int64_t IssueNumber() { return running_issue > 0 ? running_issue : next_issue++; }

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;

  void Finish(std::exception_ptr e) {
    std::lock_guard lock(mutex);
    error = e;
    done = true;
    changed.notify_all();
  }
};

void Event::Wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Event::Done() const {
  if (!state_) return true;
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

Stream::~Stream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Event Stream::Run(std::function<void()> task) {
  Item item{std::move(task), std::make_shared<Event::State>(), IssueNumber()};
  const Event event(item.state);
  if (!concurrent_) {
    Execute(item);
    return event;
  }
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(item));
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  changed_.notify_all();
  return event;
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
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
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
  return queue_.empty() && !busy_ && !failure_;
}

void Stream::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void Stream::Reset() {
  Drain();
  std::lock_guard lock(mutex_);
  failure_ = nullptr;
}

}  // namespace lins
