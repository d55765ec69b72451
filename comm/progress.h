// Completion of operations whose waiting side is code: sums, second phases.
//
// A Task runs once: in the first Wait, or in the progress thread if that comes first. So an
// operation that is waited for right away costs no change of threads, and one that is left alone
// completes by itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/backend.h"

namespace lins {

class Task {
 public:
  virtual ~Task() = default;
  // Runs it here unless another thread does or did, then waits for that. Throws what it threw.
  void Finish(double timeout_seconds);
  bool done() const;
  // Wakes a Run in progress with an error, and keeps a later one from starting.
  void Abort();

 protected:
  // Blocks until the operation is complete, or throws.
  virtual void Run(double timeout_seconds) = 0;
  virtual void Interrupt() = 0;

 private:
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  enum class State { kIdle, kRunning, kDone } state_ = State::kIdle;
  std::exception_ptr error_;
};

// Finishes tasks in the order in which they were added.
class ProgressThread {
 public:
  explicit ProgressThread(double timeout_seconds);
  // Gives what is left a short time, then aborts it.
  ~ProgressThread();
  void Add(std::shared_ptr<Task> task);

 private:
  void Loop();

  const double timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;  // the front one is being finished
  bool stop_ = false;
  std::thread thread_;
};

// What a backend returns for a task. `background`: the task is to make progress without Wait; else
// the progress thread takes it only once somebody asks whether it is done, or drops it.
std::unique_ptr<Pending> MakePending(std::shared_ptr<Task> task,
                                     std::shared_ptr<ProgressThread> progress, bool background);

}  // namespace lins
