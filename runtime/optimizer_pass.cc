#include "runtime/optimizer_pass.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "optim/adam8bit.h"
#include "optim/blocks.h"

namespace lins {
namespace {

constexpr int64_t kPassBlock = kQuantBlock;
static_assert(kPassBlock % kBlock == 0);

int64_t Blocks(int64_t numel) { return (numel + kPassBlock - 1) / kPassBlock; }

}  // namespace

Optimizer::Entries Optimizer::EntriesOf(const Slot& slot, const State& state, size_t window,
                                        int64_t from, int64_t to) {
  if (state.at[window] < 0) return {};
  const int64_t into = from - slot.buffer->OptimPart(window).first;
  LINS_CHECK(into % state.block == 0, "a block of ", state.name, " is cut at ", from);
  return {state.at[window] + into / state.block, (to - from + state.block - 1) / state.block};
}

Optimizer::Piece Optimizer::PieceOf(const Slot& slot, size_t window, int64_t from,
                                    int64_t to) const {
  Piece piece{from, SliceOf(slot, window, from, to), {}};
  for (size_t i = 0; i < slot.states.size(); ++i) {
    const State& s = slot.states[i];
    const Entries entries = EntriesOf(slot, s, window, from, to);
    if (entries.count > 0) piece.states[i] = AddressOf(s.data.values, entries.first);
  }
  return piece;
}

int64_t Optimizer::BlockBytes(const Slot& slot, const Touches& touches) const {
  int64_t bytes = 0;
  const auto add = [&](const at::Tensor& values, int64_t block) {
    bytes += HostPass::Padded(kPassBlock / block * static_cast<int64_t>(values.element_size()));
  };
  if (touches.masters && slot.buffer->master()) add(*slot.buffer->master(), 1);
  for (size_t i = 0; i < slot.states.size(); ++i) {
    const State& s = slot.states[i];
    const bool by_element =
        std::any_of(s.at.begin(), s.at.end(), [](int64_t at) { return at >= 0; });
    if (by_element && (touches.states >> i & 1)) add(s.data.values, s.block);
  }
  return bytes;
}

int64_t Optimizer::ChunkBytes() const {
  int64_t most = 0;
  for (const Slot& slot : slots_) {
    const int64_t bytes = BlockBytes(slot, {});
    if (bytes == 0) continue;
    const int64_t fit = std::max<int64_t>(1, model_->options().offload_chunk_bytes / bytes);
    most = std::max(most, bytes * std::min(fit, Blocks(slot.buffer->plan().total)));
  }
  return most;
}

void Optimizer::Pass::Stage(const Slot& slot, size_t window, int64_t from, int64_t to,
                            Touches touches, std::function<void(const Piece&)> work) {
  const int64_t bytes = optimizer_.BlockBytes(slot, touches);
  const int64_t room = optimizer_.host_pass_->chunk_bytes();
  const int64_t step = bytes == 0 ? to - from : kPassBlock * (room / bytes);
  for (int64_t begin = from; begin < to; begin += step) {
    const int64_t end = std::min(begin + step, to);
    HostPass::Chunk chunk;
    const FlatBuffer& b = *slot.buffer;
    const bool masters = touches.masters && b.master().has_value();
    if (masters)
      chunk.arrays.push_back(b.master()->narrow(0, begin - b.optim_begin(), end - begin));
    std::vector<size_t> staged;  // states
    for (size_t i = 0; i < slot.states.size(); ++i) {
      const State& s = slot.states[i];
      const Entries entries = EntriesOf(slot, s, window, begin, end);
      if (entries.count == 0 || !(touches.states >> i & 1)) continue;
      staged.push_back(i);
      chunk.arrays.push_back(s.data.values.narrow(0, entries.first, entries.count));
    }
    chunk.work = [this, &slot, window, begin, end, masters, staged,
                  work](const std::vector<at::Tensor>& on_device) {
      Piece piece{begin, optimizer_.SliceOf(slot, window, begin, end), {}};
      piece.slice.state = {};
      size_t at = 0;
      if (masters) piece.slice.param = on_device[at++].mutable_data_ptr();
      for (const size_t i : staged) {
        piece.states[i] = on_device[at++].mutable_data_ptr();
        if (i < piece.slice.state.size()) piece.slice.state[i] = piece.states[i];
      }
      work(piece);
    };
    chunks_.push_back(std::move(chunk));
  }
}

void Optimizer::Pass::Then(std::function<void()> fn) {
  if (!optimizer_.host_pass_) return fn();
  chunks_.push_back({{}, [fn = std::move(fn)](const std::vector<at::Tensor>&) { fn(); }});
}

void Optimizer::Pass::Finish() {
  if (!chunks_.empty()) optimizer_.host_pass_->Run(std::move(chunks_));
  chunks_.clear();
}

}  // namespace lins
