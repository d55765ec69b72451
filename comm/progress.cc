#include "comm/progress.h"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace lins {
namespace {

constexpr std::chrono::seconds kDrain{2};  // for operations that nobody waited for, at release
// For the error of a thread that gives up at about the same time: it knows the peer.
constexpr std::chrono::milliseconds kLinger{100};

class TaskPending : public Pending {
 public:
  TaskPending(std::shared_ptr<Task> task, std::shared_ptr<ProgressThread> progress, bool background)
      : task_(std::move(task)), progress_(std::move(progress)) {
    if (background) Hand();
  }
  ~TaskPending() override {
    if (!task_->done()) Hand();
  }

  void Wait(double timeout_seconds) override { task_->Finish(timeout_seconds); }
  bool Done() override {
    if (task_->done()) return true;
    Hand();
    return false;
  }

 private:
  void Hand() {
    if (const auto progress = progress_.lock()) progress->Add(task_);
    progress_.reset();
  }

  std::shared_ptr<Task> task_;
  std::weak_ptr<ProgressThread> progress_;  // reset once it has the task
};

}  // namespace

void Task::Finish(double timeout_seconds) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kIdle) {
    state_ = State::kRunning;
    lock.unlock();
    std::exception_ptr error;
    try {
      Run(timeout_seconds);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    state_ = State::kDone;
    error_ = error;
    finished_.notify_all();
  } else if (!finished_.wait_for(lock, std::chrono::duration<double>(timeout_seconds) + kLinger,
                                 [this] { return state_ == State::kDone; })) {
    throw std::runtime_error("timed out");
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

bool Task::done() const {
  std::lock_guard lock(mutex_);
  return state_ == State::kDone;
}

void Task::Abort() {
  std::lock_guard lock(mutex_);
  if (state_ == State::kRunning) Interrupt();
  if (state_ == State::kIdle) {
    state_ = State::kDone;
    error_ = std::make_exception_ptr(
        std::runtime_error("the communicator was released before the operation was complete"));
  }
}

ProgressThread::ProgressThread(double timeout_seconds)
    : timeout_(timeout_seconds), thread_([this] { Loop(); }) {}

ProgressThread::~ProgressThread() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kDrain, [this] { return tasks_.empty(); })) {
    for (const auto& task : tasks_) task->Abort();
  }
  stop_ = true;
  changed_.notify_all();
  lock.unlock();
  thread_.join();
}

void ProgressThread::Add(std::shared_ptr<Task> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void ProgressThread::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const std::shared_ptr<Task> task = tasks_.front();
    lock.unlock();
    try {
      task->Finish(timeout_);
    } catch (const std::exception&) {
      // The task keeps it for whoever waits.
    }
    lock.lock();
    tasks_.pop_front();
    changed_.notify_all();
  }
}

std::unique_ptr<Pending> MakePending(std::shared_ptr<Task> task,
                                     std::shared_ptr<ProgressThread> progress, bool background) {
  return std::make_unique<TaskPending>(std::move(task), std::move(progress), background);
}

}  // namespace lins
