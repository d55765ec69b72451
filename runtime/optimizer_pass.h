// An optimizer's pass over parts of its slots: at once where OS is on the device, and where it is
// offloaded in chunks that are on the device while they are worked on (host_pass.h).
//
//   Pass pass(optimizer);
//   pass.Add(slot, window, from, to, {}, [&](const Piece& piece) { Update(piece.slice); });
//   pass.Then([&] { ... });  // after all that was added so far
//   pass.Finish();
//
// Chunks begin at multiples of 256 elements from where what was added begins, so that rules which
// go by blocks of that size (optim/blocks.h) give the same bits, and 8-bit blocks stay whole.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "runtime/host_pass.h"
#include "runtime/optimizer_base.h"

namespace lins {

// Elements [from, from + slice.numel) of a slot's buffer, at addresses of the device.
struct Optimizer::Piece {
  int64_t from;
  Slice slice;  // its states: the first of `states`
  Addresses states;
};

// What of OS work reads and writes: no more is copied in and back.
struct Optimizer::Touches {
  bool masters = true;
  unsigned states = ~0u;  // a bit for each
};

class Optimizer::Pass {
 public:
  explicit Pass(Optimizer& optimizer) : optimizer_(optimizer) {}

  // work(piece) for [from, to) of the slot's buffer, which belongs to windows alike in their
  // states, `window` the first. Slots outlive the pass.
  template <typename Work>
  void Add(const Slot& slot, size_t window, int64_t from, int64_t to, Touches touches, Work work) {
    if (from >= to) return;
    if (!optimizer_.host_pass_) return work(optimizer_.PieceOf(slot, window, from, to));
    Stage(slot, window, from, to, touches, std::move(work));
  }
  void Then(std::function<void()> fn);
  void Finish();

 private:
  void Stage(const Slot& slot, size_t window, int64_t from, int64_t to, Touches touches,
             std::function<void(const Piece&)> work);

  Optimizer& optimizer_;
  std::vector<HostPass::Chunk> chunks_;
};

}  // namespace lins
