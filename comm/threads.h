// Transport between ranks that are threads of one process.
//
// The ranks of a group post the tensors of their k-th operation in the group's k-th slot. The last
// one to arrive carries the operation out for all, in a fixed order, and wakes the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/backend.h"

namespace lins {

class Nodes;

// What the worlds of one job share.
class ThreadsHub {
 public:
  ThreadsHub();
  ~ThreadsHub();
  // The transport of one rank; ranks that pass the same key meet.
  std::unique_ptr<Backend> Join(const std::vector<int64_t>& ranks, int64_t index,
                                const Nodes& nodes, const std::string& key);
  // Fails every operation in flight, and every later one. The first reason stays.
  void Abort(const std::string& reason);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lins
