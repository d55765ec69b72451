// A stream: tasks that run one after another, beside the thread that hands them over. Communication
// of one role runs on one stream, so it overlaps with compute and keeps its order.
//
// On the host a stream is a thread with a queue: a task runs when those before it have run, and to
// wait for it is to block. On a device a task is carried out at once, by the caller; what it queues
// goes to a stream of the device, and to wait for it is to make another stream of the device wait.
// The host runs ahead. Code that uses streams is the same for both:
//
//   Stream reduce(/*concurrent=*/true, QueueOf(device), "reduce");
//   const Event done = reduce.Run([=] { comm.AllReduce(grad, ReduceOp::kSum).Wait(); });
//   ...                    // work that does not touch `grad`
//   done.Wait();           // what this thread queues from here on comes after the sum
//   grad.div_(4);
#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace c10 {
class Stream;
}

namespace lins {

// The calling thread's, of a device.
c10::Stream CurrentStream(c10::Device device);

// The completion of a task. Copies share it. Default-constructed: already done.
class Event {
 public:
  struct State;
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // The completion of all that the calling thread has put on its current stream of a device so far;
  // of what it has done, where `queue` is the host.
  static Event Here(c10::Device queue);
  static Event Of(const c10::Stream& stream);  // of all that it has been given so far
  // What the calling thread does next comes after the task; rethrows what the task threw. On the
  // host it blocks until the task has run; on a device the thread's current stream waits.
  void Wait() const;
  // Blocks until the task has run, on the device too: before values are read on the host.
  void Synchronize() const;
  bool Done() const;

 private:
  std::shared_ptr<State> state_;
};

// Orders what one thread asks for, whichever thread does it: the number of the task that runs in
// this thread, given when it was handed to its stream; outside of tasks a new number.
int64_t IssueNumber();

class Stream {
 public:
  // Not concurrent: Run executes the task before it returns, on a device on the caller's current
  // stream. Streams of a device have high priority; the name is for tests.
  explicit Stream(bool concurrent, c10::Device queue = c10::Device(c10::kCPU),
                  std::string name = "");
  ~Stream();  // runs what is queued, then ends the thread
  Stream(const Stream&) = delete;

  // What a device's stream waits for before the task: all that the caller's current stream has been
  // given so far, or nothing, in which case the task waits for what it needs. (On the host the
  // caller has done its work when it calls Run.)
  enum class After { kCaller, kNothing };
  // After a task has thrown, later ones are skipped and fail with the same exception, until Reset.
  Event Run(std::function<void()> task, After after = After::kCaller);
  // True when nothing is queued or running, and nothing has thrown: what the caller does now comes
  // after all tasks so far. Of a device's stream: nothing has thrown.
  bool Idle() const;
  // Blocks until all tasks so far have run; does not throw.
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
  Event RunOnDevice(Item item, After after);

  const bool concurrent_;
  const c10::Device queue_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> waiting_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;                 // started by the first task
  std::unique_ptr<c10::Stream> side_;  // of a device, from the first task on
};

}  // namespace lins
