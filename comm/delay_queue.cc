#include "comm/delay_queue.h"

#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

namespace lins {

using Clock = std::chrono::steady_clock;

struct DelayQueue::Item {
  Clock::time_point due;
  Launch launch;
  std::mutex mutex;
  std::condition_variable changed;
  bool launched = false;             // guarded by mutex, like what follows
  std::unique_ptr<Pending> pending;  // set once, before launched
  std::exception_ptr error;

  void Set(std::unique_ptr<Pending> value, std::exception_ptr failure) {
    {
      std::lock_guard lock(mutex);
      launched = true;
      pending = std::move(value);
      error = std::move(failure);
    }
    changed.notify_all();
  }

  void Run() {
    try {
      Set(launch(), nullptr);
    } catch (...) {
      Set(nullptr, std::current_exception());
    }
    launch = nullptr;
  }
};

namespace {

std::chrono::duration<double> Seconds(double seconds) {
  return std::chrono::duration<double>(seconds);
}

class DelayedPending : public Pending {
 public:
  explicit DelayedPending(std::shared_ptr<DelayQueue::Item> item) : item_(std::move(item)) {}

  void Wait(double timeout_seconds) override {
    const auto begin = Clock::now();
    {
      std::unique_lock lock(item_->mutex);
      if (!item_->changed.wait_for(lock, Seconds(timeout_seconds),
                                   [this] { return item_->launched; })) {
        throw std::runtime_error("timed out before it was launched");
      }
      if (item_->error != nullptr) std::rethrow_exception(item_->error);
    }
    const std::chrono::duration<double> spent = Clock::now() - begin;
    item_->pending->Wait(std::max(0.0, timeout_seconds - spent.count()));
  }

  bool Done() override {
    std::lock_guard lock(item_->mutex);
    return item_->launched && (item_->error != nullptr || item_->pending->Done());
  }

  bool Confirmed() override {
    std::lock_guard lock(item_->mutex);
    if (item_->error != nullptr) std::rethrow_exception(item_->error);
    return item_->launched && item_->pending->Confirmed();
  }

 private:
  std::shared_ptr<DelayQueue::Item> item_;
};

}  // namespace

DelayQueue::DelayQueue() : thread_([this] { Loop(); }) {}

DelayQueue::~DelayQueue() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  for (const auto& item : items_) {
    item->Set(nullptr, std::make_exception_ptr(std::runtime_error(
                           "the communicator was released before the delayed operation began")));
  }
}

std::unique_ptr<Pending> DelayQueue::Post(double seconds, Launch launch) {
  auto item = std::make_shared<Item>();
  item->due = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
  item->launch = std::move(launch);
  {
    std::lock_guard lock(mutex_);
    items_.push_back(item);
  }
  wake_.notify_all();
  return std::make_unique<DelayedPending>(std::move(item));
}

void DelayQueue::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !items_.empty(); });
    if (items_.empty()) return;
    if (Clock::now() < items_.front()->due) {
      if (stop_) return;
      wake_.wait_until(lock, items_.front()->due);
      continue;
    }
    const std::shared_ptr<Item> item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    item->Run();
    lock.lock();
  }
}

}  // namespace lins
