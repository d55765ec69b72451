// Launches operations later, in order, from a thread of its own: how injected delays hold an
// operation back without holding up its caller.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/backend.h"

namespace lins {

class DelayQueue {
 public:
  using Launch = std::function<std::unique_ptr<Pending>()>;

  DelayQueue();
  // Launches what is due; the rest fails.
  ~DelayQueue();

  // Launches after all earlier ones, not before `seconds` from now. What `launch` throws, Wait
  // throws.
  std::unique_ptr<Pending> Post(double seconds, Launch launch);

  struct Item;

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Item>> items_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace lins
