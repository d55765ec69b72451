#include "comm/wire.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lins {
namespace {

constexpr char kSending[] = "sending to rank ";
constexpr char kReceiving[] = "receiving from rank ";

// Without the "[file:line] " that Gloo begins its messages with, and what follows the fact itself.
// A peer that is late may also have called something else; one that has timed out closes the
// connection.
std::string Readable(std::string message) {
  if (absl::StartsWith(message, "[")) {
    if (const size_t end = message.find("] "); end != std::string::npos) message.erase(0, end + 2);
  }
  for (const char* rest : {"\n", " This is typically caused"}) {
    if (const size_t end = message.find(rest); end != std::string::npos) message.erase(end);
  }
  if (absl::StrContains(message, "imed out")) {
    absl::StrAppend(&message,
                    "; that rank is late, or calls another operation, or for another unit, size or "
                    "type, in this place");
  } else if (absl::StrContains(message, "by peer")) {
    absl::StrAppend(&message, "; that rank has ended, or given up waiting: see its own error");
  }
  return message;
}

at::Tensor Slice(const at::Tensor& flat, int64_t offset, int64_t n) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return flat.narrow(0, offset, n);
}

}  // namespace

Deadline::Deadline(double seconds)
    : end_(std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(
               std::chrono::duration<double>(seconds))) {}

std::chrono::milliseconds Deadline::Left() const {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

Wire::Wire(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int tag, int kind,
           std::shared_ptr<SentCounters> sent)
    : ranks_(std::move(ranks)), tag_(tag), kind_(kind), sent_(std::move(sent)), group_(group) {}

Wire::~Wire() = default;

// Gloo itself ends the process of a rank that receives more than it expects, and takes less for the
// whole.
int Wire::Tag(const at::Tensor& flat, int64_t n, int phase) const {
  constexpr int64_t kMany = 8191;  // sizes near each other have tags of their own
  const int64_t bytes = n * static_cast<int64_t>(flat.element_size());
  const int64_t type = static_cast<int64_t>(flat.scalar_type());
  return (tag_ + phase) << 13 | static_cast<int>((bytes + 1009 * type + 89 * kind_) % kMany);
}

void Wire::Send(const at::Tensor& flat, int64_t offset, int64_t n, int64_t to, int phase) {
  if (n == 0) return;
  auto work = Post(kSending, to, [&](c10d::Backend& group) {
    std::vector<at::Tensor> tensors = {Slice(flat, offset, n)};
    return group.send(tensors, static_cast<int>(to), Tag(flat, n, phase));
  });
  (*sent_)[to] += n * static_cast<int64_t>(flat.element_size());
  std::lock_guard lock(mutex_);
  sends_.push_back({std::move(work), to});
}

void Wire::Recv(const at::Tensor& flat, int64_t offset, int64_t n, int64_t from, int phase) {
  if (n == 0) return;
  auto work = Post(kReceiving, from, [&](c10d::Backend& group) {
    std::vector<at::Tensor> tensors = {Slice(flat, offset, n)};
    return group.recv(tensors, static_cast<int>(from), Tag(flat, n, phase));
  });
  std::lock_guard lock(mutex_);
  recvs_.push_back({std::move(work), from});
}

template <typename Fn>
c10::intrusive_ptr<c10d::Work> Wire::Post(const char* what, int64_t peer, Fn fn) {
  const auto group = group_.lock();
  if (!group) throw std::runtime_error("the communicator was released");
  try {
    return fn(*group);
  } catch (const std::exception& e) {
    throw std::runtime_error(absl::StrCat(what, ranks_[peer], ": ", Readable(e.what())));
  }
}

void Wire::WaitRecvs(size_t count, const Deadline& deadline) {
  Wait(recvs_, &recvs_done_, count, kReceiving, deadline);
}

void Wire::WaitAll(const Deadline& deadline) {
  Wait(recvs_, &recvs_done_, recvs_.size(), kReceiving, deadline);
  Wait(sends_, &sends_done_, sends_.size(), kSending, deadline);
}

void Wire::Wait(std::vector<Message>& messages, size_t* done, size_t count, const char* what,
                const Deadline& deadline) {
  for (size_t& i = *done; i < count; ++i) {
    Message message;
    {
      std::lock_guard lock(mutex_);
      if (interrupted_) throw std::runtime_error("the communicator was released meanwhile");
      message = messages[i];
    }
    try {
      if (!message.work->wait(deadline.Left())) throw std::runtime_error("interrupted");
    } catch (const std::exception& e) {
      throw std::runtime_error(absl::StrCat(what, ranks_[message.peer], ": ", Readable(e.what())));
    }
    std::lock_guard lock(mutex_);
    messages[i].work.reset();
  }
}

void Wire::Interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (const Message& message : recvs_) {
    if (message.work) message.work->abort();
  }
  for (const Message& message : sends_) {
    if (message.work) message.work->abort();
  }
}

at::Tensor StagingPool::Take(int64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->numel() < bytes) continue;
      at::Tensor buffer = *std::move(it);
      free_.erase(it);
      return buffer;
    }
  }
  return at::empty({bytes}, at::kByte);
}

void StagingPool::Give(at::Tensor buffer) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(buffer));
  std::sort(free_.begin(), free_.end(),
            [](const at::Tensor& a, const at::Tensor& b) { return a.numel() < b.numel(); });
  if (free_.size() > kKeep) free_.erase(free_.begin());
}

}  // namespace lins
