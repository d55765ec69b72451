#include "runtime/muon.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "runtime/optimizer_pass.h"

namespace lins {
namespace {

c10::BFloat16* At(const at::Tensor& t, int64_t at) {
  return t.mutable_data_ptr<c10::BFloat16>() + at;
}

// Each matrix to the rank with the least work so far, the largest first; then by owner.
template <typename Matrices, typename Work>
void AssignOwners(Matrices& matrices, int64_t ranks, Work work) {
  std::stable_sort(matrices.begin(), matrices.end(),
                   [&](const auto& a, const auto& b) { return work(a) > work(b); });
  std::vector<double> load(ranks, 0);
  for (auto& m : matrices) {
    m.owner = std::min_element(load.begin(), load.end()) - load.begin();
    load[m.owner] += work(m);
  }
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const auto& a, const auto& b) { return a.owner < b.owner; });
}

}  // namespace

Muon::Muon(std::shared_ptr<ShardedModel> model, std::vector<MuonOptions> groups,
           const GroupOf& group_of, int64_t batch_numel)
    : Optimizer(std::move(model), groups.size(), group_of), groups_(std::move(groups)) {
  for (const MuonOptions& g : groups_) muon_.push_back(g.muon);
  for (Slot& slot : slots_) {
    AddState(slot, "momentum_buffer", [&](size_t i) { return IsMatrix(slot, i); });
    AddState(slot, "exp_avg", [&](size_t i) { return !IsMatrix(slot, i); });
    AddState(slot, "exp_avg_sq", [&](size_t i) { return !IsMatrix(slot, i); });
  }
  MakeBatches(batch_numel);
}

bool Muon::IsMatrix(const Slot& slot, size_t window) const {
  const Window& w = slot.buffer->windows()[window];
  return w.shape.size() == 2 && w.numel > 0 && muon_[slot.group[window]];
}

void Muon::MakeBatches(int64_t batch_numel) {
  const LiveMesh& mesh = model_->mesh();
  int64_t most_parts = 0, most_pieces = 0;
  for (const auto& team : Teams()) {
    const Axes axes = slots_[team[0]].buffer->plan().optim.SplitAxes();
    const std::vector<int64_t> group = mesh.Group(axes, mesh.rank());
    Batch batch{axes, {}};
    int64_t numel = 0;
    const auto shape = [&](const Matrix& m) -> const Window& {
      return slots_[m.slot].buffer->windows()[m.window];
    };
    const auto close = [&] {
      if (batch.matrices.empty()) return;
      AssignOwners(batch.matrices, Mesh::GroupSize(axes), [&](const Matrix& m) {
        const Shape& s = shape(m).shape;
        return static_cast<double>(shape(m).numel) * static_cast<double>(std::min(s[0], s[1]));
      });
      int64_t parts = 0, pieces = 0;
      for (const Matrix& m : batch.matrices) {
        const Range part = PartOn(mesh.rank(), m);
        parts += part.second - part.first;
        if (group[m.owner] == mesh.rank()) pieces += shape(m).numel;
      }
      most_parts = std::max(most_parts, parts);
      most_pieces = std::max(most_pieces, pieces);
      batches_.push_back(std::move(batch));
      batch = {axes, {}};
      numel = 0;
    };
    for (size_t s : team) {
      for (size_t i = 0; i < slots_[s].group.size(); ++i) {
        if (!IsMatrix(slots_[s], i)) continue;
        const int64_t n = slots_[s].buffer->windows()[i].numel;
        if (numel + n > batch_numel) close();
        batch.matrices.push_back({s, i, 0});
        numel += n;
      }
    }
    close();
    // Every communicator is made here, in one order.
    if (group.size() > 1) mesh.Comm(axes, Role::kOther);
  }
  const auto options =
      at::TensorOptions()
          .dtype(at::kBFloat16)
          .device(slots_.empty() ? at::Device(at::kCPU) : slots_[0].buffer->param_shard().device());
  parts_ = at::empty({most_parts}, options);
  pieces_ = at::empty({most_pieces}, options);
}

Range Muon::PartOn(int64_t rank, const Matrix& m) const {
  const FlatBuffer& b = *slots_[m.slot].buffer;
  const Window& w = b.windows()[m.window];
  const Range held = b.plan().optim.RangesOf(rank)[0];
  const auto [from, to] = w.PartIn(held);
  if (from == to) return {0, 0};
  return {from - w.offset, to - w.offset};
}

void Muon::Check() const {
  CheckCount(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].muon != muon_[g]) {
      throw Error(absl::StrCat("group ", g, " was made with muon=", muon_[g], ": it stays so"));
    }
  }
}

void Muon::UpdateTogether(const ShardedModel::GradSummary& summary) {
  for (const Batch& batch : batches_) UpdateBatch(batch, summary);
}

void Muon::UpdateBatch(const Batch& batch, const ShardedModel::GradSummary& summary) {
  const LiveMesh& mesh = model_->mesh();
  const std::vector<int64_t> group = mesh.Group(batch.axes, mesh.rank());
  const OpInfo info{"root", mesh.AxesToString(batch.axes), ""};
  const auto length = [](const Range& r) { return r.second - r.first; };
  std::vector<Matrix> all, mine;
  for (const Matrix& m : batch.matrices) {
    if (!summary.used[m.slot][m.window]) continue;
    all.push_back(m);
    if (group[m.owner] == mesh.rank()) mine.push_back(m);
  }
  if (all.empty()) return;

  // Parts to their owners: by owner, then matrix. They arrive by sender, then matrix.
  Counts sent(group.size(), 0), received(group.size(), 0);
  int64_t at = 0;
  Pass momentum(*this);
  for (const Matrix& m : all) {
    const Slot& slot = slots_[m.slot];
    const auto [from, to] = slot.buffer->OptimPart(m.window);
    const auto work = [this, m, at, from = from](const Piece& piece) {
      MuonMomentum(OptionsOf(m), piece.slice, At(parts_, at + piece.from - from));
    };
    momentum.Add(slot, m.window, from, to, {.masters = false, .states = 1}, work);
    sent[m.owner] += to - from;
    at += to - from;
  }
  momentum.Finish();
  const at::Tensor parts = parts_.narrow(0, 0, at);
  at = 0;
  for (size_t r = 0; r < group.size(); ++r) {
    for (const Matrix& m : mine) received[r] += length(PartOn(group[r], m));
    at += received[r];
  }
  at::Tensor pieces = pieces_.narrow(0, 0, at);
  const auto exchange = [&](const at::Tensor& out, const at::Tensor& in, const Counts& out_counts,
                            const Counts& in_counts) {
    if (group.size() == 1) {
      out.copy_(in);
    } else {
      mesh.Comm(batch.axes, Role::kOther).AllToAll(out, in, out_counts, in_counts, info).Wait();
    }
  };
  exchange(pieces, parts, received, sent);

  // fn(m, from, n, place): elements [from, from + n) of matrix m, which lie at `place` of pieces.
  const auto for_pieces = [&](auto fn) {
    int64_t place = 0;
    for (int64_t rank : group) {
      for (size_t i = 0; i < mine.size(); ++i) {
        const Range part = PartOn(rank, mine[i]);
        fn(i, part.first, length(part), place);
        place += length(part);
      }
    }
  };
  std::vector<at::Tensor> whole;
  for (const Matrix& m : mine) {
    const Shape& shape = slots_[m.slot].buffer->windows()[m.window].shape;
    whole.push_back(at::empty({shape[0], shape[1]}, pieces_.options()));
  }
  for_pieces([&](size_t i, int64_t from, int64_t n, int64_t place) {
    whole[i].view({-1}).narrow(0, from, n).copy_(pieces.narrow(0, place, n));
  });
  for (size_t i = 0; i < mine.size(); ++i) {
    whole[i] = NewtonSchulz(whole[i], OptionsOf(mine[i])).contiguous();
  }
  for_pieces([&](size_t i, int64_t from, int64_t n, int64_t place) {
    pieces.narrow(0, place, n).copy_(whole[i].view({-1}).narrow(0, from, n));
  });
  exchange(parts, pieces, sent, received);

  at = 0;
  Pass update(*this);
  for (const Matrix& m : all) {
    const Slot& slot = slots_[m.slot];
    const auto [from, to] = slot.buffer->OptimPart(m.window);
    const auto work = [this, m, &slot, at, from = from](const Piece& piece) {
      const Shape& shape = slot.buffer->windows()[m.window].shape;
      Slice slice = piece.slice;
      slice.rounding.key = RoundingKey(slot, slot.updates[m.window]);
      MuonUpdate(OptionsOf(m), shape[0], shape[1], slice, At(parts_, at + piece.from - from));
    };
    update.Add(slot, m.window, from, to, {.masters = true, .states = 0}, work);
    at += to - from;
  }
  update.Finish();
}

void Muon::UpdateRun(Slot&, const Run& run) {
  Slice slice = run.slice;
  slice.state = {slice.state[1], slice.state[2], nullptr};
  AdamUpdate(AdamWOf(groups_[run.group]), run.step, slice);
}

}  // namespace lins
