// One operation over messages, as data: what was posted, and steps that follow what arrives.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/progress.h"
#include "comm/wire.h"

namespace lins {

// Pieces of a tensor are cut, and the cuts worked on one after another: cut s of n elements is
// [Begin(s, n), Begin(s + 1, n)). Pieces of up to `most` elements have the same number of cuts,
// some of them empty, so that ranks agree on it for parts of unlike sizes.
class Cuts {
 public:
  // At most `count` of them, of at least `bytes` each (the last one aside).
  Cuts(int64_t most, int64_t element_size, int64_t count, int64_t bytes);
  int64_t count() const { return count_; }
  int64_t Begin(int64_t cut, int64_t n) const;

 private:
  int64_t size_, count_;
};

// Elements of a flat tensor.
struct Piece {
  at::Tensor flat;
  int64_t offset = 0, n = 0;

  char* data() const;
  Piece Cut(const Cuts& cuts, int64_t cut) const;
};

// A flat tensor cut into parts of counts[i] elements.
std::vector<Piece> Parts(const at::Tensor& flat, const Counts& counts);
// Copies `from` to `to` unless it is there already.
void CopyPiece(const Piece& to, const Piece& from);

// A task of messages. Build it by posting sends and receives on `wire` and adding steps; Run takes
// the steps in order, then waits for all messages.
class Exchange : public Task {
 public:
  struct Message {
    Piece what;
    int64_t to;
    int phase;
  };
  // Once the first `received` of the posted receives are complete: parts reduced into `into`
  // as ReduceInOrder does with `runs` and `divisor` (no parts: nothing to reduce), then messages
  // sent.
  struct Step {
    size_t received = 0;
    Piece into{};
    std::vector<const void*> parts{};
    ReduceOp op = ReduceOp::kSum;
    std::vector<int64_t> runs{};
    int64_t divisor = 0;
    std::vector<Message> sends{};
  };

  Exchange(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int tag, int kind,
           std::shared_ptr<SentCounters> sent, std::shared_ptr<StagingPool> pool);
  ~Exchange() override;

  void Send(const Piece& piece, int64_t to, int phase = 0);
  void Recv(const Piece& piece, int64_t from, int phase = 0);
  size_t posted() const { return wire_.posted(); }
  void Add(Step step) { steps_.push_back(std::move(step)); }
  bool has_steps() const { return !steps_.empty(); }
  // Memory for n elements that lives as long as the operation. At most once per exchange.
  at::Tensor Stage(int64_t n, at::ScalarType dtype);
  // A tensor that steps point into lives as long as the operation.
  void Keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

 protected:
  void Run(double timeout_seconds) override;
  void Interrupt() override { wire_.Interrupt(); }

 private:
  Wire wire_;
  std::shared_ptr<StagingPool> pool_;
  at::Tensor staging_;
  std::vector<at::Tensor> kept_;
  std::vector<Step> steps_;
  bool complete_ = false;
};

// Calls `receives` and `sends`, which post an operation's messages, up to `bytes` to each rank.
//
// Gloo sends a message only after its receiver's note that it is ready, which travels in the
// connection's other direction, behind what that direction sends. So large messages are received
// first: a late rank that began with its sends would hold back the note, and with it the data that
// could come meanwhile, until they are through. Small ones are sent first: fewer notes cross.
template <typename Receives, typename Sends>
void PostInOrder(int64_t bytes, Receives receives, Sends sends) {
  constexpr int64_t kLarge = 2 * 1024 * 1024;
  if (bytes >= kLarge) receives();
  sends();
  if (bytes < kLarge) receives();
}

}  // namespace lins
