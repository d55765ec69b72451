// The messages of one operation over a c10d process group, and memory for those on their way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace lins {

class Deadline {
 public:
  explicit Deadline(double seconds);
  std::chrono::milliseconds Left() const;  // at least 1 ms: 0 means "no limit" to c10d

 private:
  std::chrono::steady_clock::time_point end_;
};

// Bytes handed to the transport for each rank of a group so far.
using SentCounters = std::vector<std::atomic<int64_t>>;

// Messages of no elements are not sent: both sides know the counts. Peers are indices of the group.
// A message is only received by an operation of the same number (tag, and phase) and kind
// (operation and unit), as one of the same type and size: ranks that disagree wait for each other
// until the deadline. Messages that are alike in all of this arrive in the order in which they were
// sent.
class Wire {
 public:
  // An operation has the tags from a multiple of kPhases on, all less than kTags.
  static constexpr int kPhases = 4, kTags = 1 << 18;

  Wire(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int tag, int kind,
       std::shared_ptr<SentCounters> sent);
  ~Wire();

  void Send(const at::Tensor& flat, int64_t offset, int64_t n, int64_t to, int phase = 0);
  void Recv(const at::Tensor& flat, int64_t offset, int64_t n, int64_t from, int phase = 0);
  // How many receives were posted.
  size_t posted() const { return recvs_.size(); }
  // Waits for the first `count` receives, in the order of posting, or for everything. Both throw
  // std::runtime_error that names the peer on failure and when the deadline has passed.
  void WaitRecvs(size_t count, const Deadline& deadline);
  void WaitAll(const Deadline& deadline);
  void Interrupt();  // from another thread: makes the waits above throw

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;  // null once waited for
    int64_t peer;
  };
  template <typename Fn>  // fn starts a message with the group
  c10::intrusive_ptr<c10d::Work> Post(const char* what, int64_t peer, Fn fn);
  // Waits for messages[*done] up to messages[count - 1].
  void Wait(std::vector<Message>& messages, size_t* done, size_t count, const char* what,
            const Deadline& deadline);

  const std::vector<int64_t> ranks_;
  int Tag(const at::Tensor& flat, int64_t n, int phase) const;

  const int tag_, kind_;
  const std::shared_ptr<SentCounters> sent_;
  std::mutex mutex_;
  c10::weak_intrusive_ptr<c10d::Backend> group_;  // which a released communicator does not outlive
  std::vector<Message> sends_, recvs_;            // guarded by mutex_
  size_t sends_done_ = 0, recvs_done_ = 0;        // of the thread that waits
  bool interrupted_ = false;                      // guarded by mutex_
};

// Buffers kept between operations: fresh memory costs a page fault for every 4 KiB.
class StagingPool {
 public:
  at::Tensor Take(int64_t bytes);  // bytes or more
  void Give(at::Tensor buffer);

 private:
  static constexpr size_t kKeep = 4;
  std::mutex mutex_;
  std::vector<at::Tensor> free_;
};

}  // namespace lins
