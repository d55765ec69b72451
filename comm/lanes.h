// Work of one role that takes several collectives over different groups, as one of the next unit
// follows another:
//
//   Lanes lanes(/*concurrent=*/true, QueueOf(device), "reduce");
//   lanes.Run({{{0, 1}, scatter_within_the_node}, {{0, 2}, sum_among_nodes}, {{}, divide}});
//   lanes.Run(...of the next unit...);     // its first stage runs beside the second of the first
//
// Each group of ranks has a stream, so that every communicator keeps the order in which stages were
// handed over, the same on all ranks when the calls of Run are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/stream.h"

namespace lins {

struct Stage {
  std::vector<int64_t> group{};  // of ranks that communicate; empty: none do
  std::function<void()> run;
};

class Lanes {
 public:
  // Not concurrent: Run carries all stages out before it returns. Queue and name as of a Stream.
  explicit Lanes(bool concurrent, c10::Device queue = c10::Device(c10::kCPU), std::string name = "")
      : concurrent_(concurrent), queue_(queue), name_(std::move(name)), here_(false, queue) {}

  // Runs the stages one after another, those that communicate on their group's stream, others with
  // a neighbour; where none communicates, in the calling thread. Returns the completion of each.
  // After a stage has thrown, those that follow it fail with the same exception.
  std::vector<Event> Run(std::vector<Stage> stages);
  void Drain();  // blocks until all stages so far have run; does not throw
  void Reset();  // drains, and forgets failures

 private:
  const bool concurrent_;
  const c10::Device queue_;
  const std::string name_;
  Stream here_;
  std::mutex mutex_;  // of the map
  std::map<std::vector<int64_t>, std::unique_ptr<Stream>> streams_;
};

}  // namespace lins
