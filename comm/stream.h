// A stream: tasks that run one after another, beside the thread that hands them over. Communication
// of one role runs on one stream, so it overlaps with compute and keeps its order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace lins {

// The completion of a task. Copies share it. Default-constructed: already done.
class Event {
 public:
  struct State;
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Blocks until the task has run; rethrows what it threw.
  void Wait() const;
  bool Done() const;

 private:
  std::shared_ptr<State> state_;
};

// Orders what one thread asks for, whichever thread does it: the number of the task that runs in
// this thread, given when it was handed to its stream; outside of tasks a new number.
int64_t IssueNumber();

class Stream {
 public:
  // Not concurrent: Run executes the task before it returns.
  explicit Stream(bool concurrent) : concurrent_(concurrent) {}
  ~Stream();  // runs what is queued, then ends the thread
  Stream(const Stream&) = delete;

  // After a task has thrown, later ones are skipped and fail with the same exception, until Reset.
  Event Run(std::function<void()> task);
  // True when nothing is queued or running, and nothing has thrown: what the caller does now comes
  // after all tasks so far.
  bool Idle() const;
  // Waits for all tasks so far; does not throw.
  void Drain();
  void Reset();  // drains, and forgets a failure

 private:
  struct Item {
    std::function<void()> task;
    std::shared_ptr<Event::State> state;
    int64_t issue;
  };
  void Loop();
  void Execute(Item& item);

  const bool concurrent_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // started by the first task
};

}  // namespace lins
