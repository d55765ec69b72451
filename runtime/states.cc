// What a sharded model holds, seen from outside.
#include <ATen/ATen.h>

#include <algorithm>

#include "mesh/error.h"
#include "runtime/sharded_model.h"

namespace lins {
namespace {

// The window's part of a buffer split like `buffer_layout`, whose slot this rank holds.
DTensor WindowOf(const Window& w, const Layout& buffer_layout, const at::Tensor& slot,
                 const LiveMesh& mesh) {
  const Range held = buffer_layout.RangesOf(mesh.rank())[0];
  const auto [from, to] = w.PartIn(held);
  return WindowPart(w, buffer_layout, slot.narrow(0, from - held.first, to - from), mesh);
}

}  // namespace

DTensor WindowPart(const Window& w, const Layout& buffer_layout, const at::Tensor& part,
                   const LiveMesh& mesh) {
  Terms terms;
  const int64_t total = buffer_layout.shape()[0];
  if (!buffer_layout.terms().shards.empty()) {
    terms.flat = FlatTerm{buffer_layout.terms().shards[0].axes, w.offset, total};
  }
  const Layout layout = ValueOrThrow(Layout::Create(terms, w.shape, mesh));
  return DTensor::FromLocal(
      terms.flat ? part : part.view(std::vector<int64_t>(w.shape.begin(), w.shape.end())), mesh,
      layout);
}

std::vector<std::pair<std::string, ParamState>> ShardedModel::States(std::optional<int> of) {
  FinishUpdates();
  std::vector<std::pair<std::string, ParamState>> out;
  ApplyGradientScale();
  // All ranks must see the same gradients: without a summary, nobody knows what others have used.
  size_t next = 0;
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) {
      const std::vector<bool>* used =
          summary_ && b->trainable() ? &summary_->used.at(next++) : nullptr;
      if (of && unit != units_.at(*of)) continue;
      for (size_t i = 0; i < b->windows().size(); ++i) {
        const Window& w = b->windows()[i];
        ParamState state{WindowOf(w, b->plan().param, b->param_shard(), mesh_), {}, {}, {}};
        if (b->trainable()) {
          const Layout& os = b->plan().optim;
          if (grads_ready_ && (!used || (*used)[i]))
            state.grad = WindowOf(w, os, b->OptimGrad(), mesh_);
          if (b->master()) state.master = WindowOf(w, os, *b->master(), mesh_);
          for (const auto& [name, s] : b->optim_state()) {
            if (s.at[i] < 0) continue;
            const Range part = b->OptimPart(i);
            state.optim.emplace_back(
                name,
                WindowPart(w, os, s.values.narrow(0, s.at[i], part.second - part.first), mesh_));
          }
        }
        out.emplace_back(w.name, std::move(state));
      }
    }
  }
  return out;
}

ShardedModel::Memory ShardedModel::MemoryUse() const {
  Memory m;
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) {
      m.param += b->param_shard().nbytes();
      if (b->grad_shard().defined()) m.grad += b->grad_shard().nbytes();
      int64_t& optim = b->offloads() ? m.optim_host : m.optim;
      if (b->master()) optim += b->master()->nbytes();
      for (const auto& [name, s] : b->optim_state()) optim += s.values.nbytes();
      m.padding += b->padding() * b->param_shard().element_size() / Product(b->plan().policy.param);
    }
  }
  m.buffers = pool_->stats();
  return m;
}

}  // namespace lins
