// Transport over Gloo: point-to-point messages of c10d's ProcessGroupGloo.
//
// Gloo's device thread moves the bytes, straight between the callers' tensors, so an operation
// makes progress without anybody waiting for it, counts may differ, and reductions happen here, in
// a fixed order. Small messages go straight between all ranks (comm/direct.h), large ones of a
// group over several nodes cross between nodes as often as needed only (comm/by_node.h).
// benchmarks/README.md compares this with Gloo's own collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "comm/backend.h"

namespace c10d {
class Store;
}

namespace lins {

class Nodes;

class GlooFactory {
 public:
  // Chooses the network interface as torch does: GLOO_SOCKET_IFNAME, else the host's own name, else
  // loopback.
  GlooFactory(c10::intrusive_ptr<c10d::Store> store, double timeout_seconds);
  ~GlooFactory();
  // Connects the ranks that pass the same key. Collective among them.
  std::unique_ptr<Backend> Connect(const std::vector<int64_t>& ranks, int64_t index,
                                   const Nodes& nodes, const std::string& key);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lins
