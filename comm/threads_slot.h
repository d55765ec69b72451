// One operation of a group of threads: what each rank passed, and carrying it out for all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "comm/nodes.h"

namespace lins {

// Tensors are held by value: a rank that gives up leaves them alive for the others.
struct ThreadsCall {
  absl::string_view op;
  std::string unit{};
  at::Tensor out{}, in{};
  ReduceOp reduce = ReduceOp::kSum;
  int64_t root = 0;
  Counts in_counts{}, out_counts{};

  std::string ToString() const;
};

// Guarded by its group's mutex, but for Execute.
struct ThreadsSlot {
  ThreadsSlot(const std::vector<int64_t>& ranks, const Nodes& nodes)
      : ranks(ranks), nodes(nodes), calls(ranks.size()) {}

  // Takes a rank's call; one that does not match the others fails the operation for everybody.
  void Arrive(int64_t index, ThreadsCall call);
  bool Complete() const { return arrived == calls.size(); }
  std::string Missing() const;  // "ranks 2, 3, which have not begun this operation"
  void Fail(const std::string& reason);
  // Carries out a complete operation that has not failed.
  void Execute();

  const std::vector<int64_t> ranks;
  const Nodes nodes;
  std::vector<std::optional<ThreadsCall>> calls;
  size_t arrived = 0;
  bool finished = false;
  std::string error;  // set at most once, before finished

 private:
  // Reduces n elements of all inputs from `offset` on.
  void Reduce(void* out, int64_t offset, int64_t n) const;
  void AllGather();
  void ReduceScatter();
  void AllReduce();
  void AllToAll();
  void Broadcast();
};

}  // namespace lins
