// A communicator: the collectives of one group of ranks, for one role.
//
//   Communicator& c = world.Get({0, 1, 2, 3}, Role::kGather);
//   Work w = c.AllGather(out, in);   // started; leave the tensors alone until it is waited for
//   w.Wait();                        // throws lins::Error on failure or time-out
//
// Every rank of the group calls the same operations in the same order. Tensors are contiguous, on
// the world's device, of equal dtype. `counts` are elements per rank of the group, in order; left
// empty they are equal. Ranks with no elements take part. A group of one copies and does not
// communicate (and is not traced). Wrong arguments throw Error (kValue) on the calling rank at
// once; all else that goes wrong throws from Wait.
//
// Sums run in the order of the group. Where it covers several nodes (World::SetNodeSize) with the
// same number of its ranks, more than one, on each, they run in that order within each node, then
// over the nodes, in the order of their first ranks; half and bfloat16 are rounded once for each
// node and once at the end (averages: only at the end). So every rank that gets an element gets the
// same bits, with any transport but NCCL, whose order is its own and the same on every rank.
//
// recv_bytes of the trace is what the rank must receive by definition of the operation, with n the
// elements it ends with, N all elements and k ranks: all_gather N - own; reduce_scatter (k-1)*n;
// all_reduce reduce_scatter + all_gather with chunks of ceil(N/k); all_to_all what others send it;
// broadcast N, or 0 at the root.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mesh/reduce_op.h"

namespace at {
class Tensor;
}

namespace lins {

class Backend;
class RankContext;

// Operations of different roles never wait for each other: each role has communicators of its own.
enum class Role { kGather, kReduce, kUpdate, kOther };
absl::string_view RoleName(Role role);

// Whom an operation serves: appears in traces and errors.
struct OpInfo {
  std::string unit{};
  std::string axes{};
  std::string op{};  // logical kind when it differs from the collective's name, e.g. "exchange"
};

// An operation in flight. Copies share it. Default-constructed: already done.
class Work {
 public:
  struct State;
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Blocks until done, at most the communicator's time-out. Throws Error (kRuntime) that names
  // operation, unit, role, group, sequence number, bytes and elapsed time. Waiting again returns or
  // throws the same. Over NCCL the current stream waits, not the host; what fails later is thrown
  // by Communicator::CheckCompleted.
  void Wait();
  bool Done() const;  // without blocking; true also after a failure

 private:
  std::shared_ptr<State> state_;
};

using Counts = std::vector<int64_t>;

class Communicator {
 public:
  Communicator(std::unique_ptr<Backend> backend, std::vector<int64_t> ranks, int64_t index,
               Role role, double timeout_seconds, std::shared_ptr<RankContext> context);
  ~Communicator();

  int64_t index() const { return index_; }  // this rank's place in the group
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }
  Role role() const { return role_; }

  // out = concatenation of every rank's `in`. `in` may be this rank's own part of `out`.
  Work AllGather(const at::Tensor& out, const at::Tensor& in, const Counts& counts = {},
                 const OpInfo& info = {});
  // out = this rank's part of the elementwise reduction of every rank's `in`. `out` may be that
  // part of `in`; the rest of `in` is left alone.
  Work ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                     const Counts& counts = {}, const OpInfo& info = {});
  Work AllReduce(const at::Tensor& inout, ReduceOp op, const OpInfo& info = {});
  // Sends in_counts[r] elements to rank r and receives out_counts[r] from it, in rank order.
  // `out` and `in` do not overlap.
  Work AllToAll(const at::Tensor& out, const at::Tensor& in, const Counts& out_counts = {},
                const Counts& in_counts = {}, const OpInfo& info = {});
  Work Broadcast(const at::Tensor& inout, int64_t root, const OpInfo& info = {});
  Work Barrier(const OpInfo& info = {});

  // While one lives, operations that begin may start together, at its end: one launch for the
  // broadcasts of several roots. Wait for them afterwards.
  class Group {
   public:
    explicit Group(Communicator& comm);
    ~Group();
    Group(const Group&) = delete;

   private:
    Communicator& comm_;
  };

  // Throws the Error of an operation that was waited for on a device and has failed there since.
  // Beginning an operation does the same. Never blocks.
  void CheckCompleted();

  // Bytes that this rank has sent to each rank of the group so far, relayed ones included; empty
  // where the transport does not count them.
  std::vector<int64_t> SentBytes() const;

 private:
  template <typename Fn>
  Work Start(absl::string_view op, const OpInfo& info, int64_t bytes, int64_t recv_bytes,
             Fn&& launch);
  // "all_gather (role gather, group [0, 1]): ", the beginning of messages about arguments.
  std::string Describe(absl::string_view op, const OpInfo& info) const;
  void CheckTensor(absl::string_view op, const OpInfo& info, absl::string_view name,
                   const at::Tensor& tensor) const;
  // CheckTensor of both, and equal types.
  void CheckPair(absl::string_view op, const OpInfo& info, const at::Tensor& out,
                 const at::Tensor& in) const;
  // `counts`, or equal ones when empty; they must add up to `total`, the elements of tensor `name`.
  Counts CompleteCounts(absl::string_view op, const OpInfo& info, absl::string_view name,
                        const Counts& counts, int64_t total) const;

  std::unique_ptr<Backend> backend_;
  std::vector<int64_t> ranks_;
  int64_t index_;
  Role role_;
  double timeout_;
  std::shared_ptr<RankContext> context_;
  std::shared_ptr<const struct GroupFacts> facts_;
  int64_t sequence_ = 0;
  std::shared_ptr<class DelayQueue> delayed_;  // made by the first injected delay
  bool grouping_ = false;                      // between BeginGroup and EndGroup
  std::mutex unconfirmed_mutex_;
  std::deque<std::shared_ptr<Work::State>> unconfirmed_;  // of an asynchronous transport
};

}  // namespace lins
