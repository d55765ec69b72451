#include "runtime/optimizer_base.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/device.h"
#include "mesh/error.h"
#include "mesh/fnv.h"
#include "optim/convert.h"
#include "runtime/gradient_norm.h"
#include "runtime/optimizer_pass.h"

namespace lins {

void* Optimizer::AddressOf(const at::Tensor& values, int64_t at) {
  return static_cast<char*>(values.mutable_data_ptr()) +
         at * static_cast<int64_t>(values.itemsize());
}

Optimizer::Optimizer(std::shared_ptr<ShardedModel> model, size_t groups, const GroupOf& group_of,
                     Place runs)
    : model_(std::move(model)), groups_(groups) {
  if (groups == 0) throw Error("an optimizer needs at least one group of options");
  if (model_->options().offload_optimizer) {
    host_pass_ = std::make_unique<HostPass>(model_->pool(), model_->options().overlap);
  }
  std::vector<std::string> names;
  for (FlatBuffer* b : model_->TrainableBuffers()) {
    Slot slot{b, {}, std::vector<int64_t>(b->windows().size(), 0), {}};
    for (const Window& w : b->windows()) {
      const auto found = group_of.find(w.name);
      slot.group.push_back(found == group_of.end() ? 0 : found->second);
      places_[w.name] = {slots_.size(), slot.group.size() - 1};
      names.push_back(w.name);
    }
    b->optim_state().clear();  // of an optimizer before this one
    const at::Device device = b->param_shard().device();
    const bool kernels = runs == Place::kKernels && device.is_cuda() && device::Compiled();
    if (!kernels && runs != Place::kAnywhere && !device.is_cpu()) {
      throw Error(absl::StrCat(
          "this optimizer updates parameters in host memory, and the model's are on ", device.str(),
          runs == Place::kHost ? "" : ", for which lins was built without kernels",
          ": lins.wrap_optimizer(torch.optim.AdamW, model) works there"));
    }
    slots_.push_back(std::move(slot));
  }
  for (const auto& [name, group] : group_of) {
    if (!places_.count(name)) {
      throw Error(absl::StrCat(
          "parameter '", name,
          "' is none of the model's trainable parameters: ", absl::StrJoin(names, ", ")));
    }
    if (group < 0 || group >= static_cast<int>(groups)) {
      throw Error(absl::StrCat("parameter '", name, "' is in group ", group, ": legal are 0 to ",
                               static_cast<int64_t>(groups) - 1));
    }
  }
}

at::TensorOptions Optimizer::StateOptions(const FlatBuffer& buffer) const {
  const at::TensorOptions options = buffer.param_shard().options().dtype(buffer.types().master);
  return buffer.offloads() ? InHostMemory(options) : options;
}

void Optimizer::AddState(Slot& slot, const std::string& name,
                         const std::function<bool(size_t)>& wanted) {
  FlatBuffer& b = *slot.buffer;
  OptimState state;
  int64_t total = 0;
  for (size_t i = 0; i < b.windows().size(); ++i) {
    const Range part = b.OptimPart(i);
    state.at.push_back(wanted(i) ? total : -1);
    if (wanted(i)) total += part.second - part.first;
  }
  // Where all have it, padding too: runs then have the alignment of the buffer.
  const bool all =
      std::all_of(state.at.begin(), state.at.end(), [](int64_t at) { return at >= 0; });
  state.values = at::zeros({all ? b.OptimParam().numel() : total}, StateOptions(b));
  b.optim_state()[name] = state;
  slot.states.push_back({name, state, state.at});
}

void Optimizer::AddBlocks(Slot& slot, const std::string& name, at::ScalarType dtype,
                          int64_t block) {
  FlatBuffer& b = *slot.buffer;
  std::vector<int64_t> at;
  int64_t total = 0;
  for (size_t i = 0; i < b.windows().size(); ++i) {
    const Range part = b.OptimPart(i);
    at.push_back(total);
    total += (part.second - part.first + block - 1) / block;
  }
  AddOther(slot, name, at::zeros({total}, StateOptions(b).dtype(dtype)));
  slot.states.back().at = std::move(at);
  slot.states.back().block = block;
}

at::Tensor Optimizer::AddOther(Slot& slot, const std::string& name, at::Tensor zeros) {
  OptimState state{std::move(zeros), std::vector<int64_t>(slot.group.size(), -1)};
  slot.buffer->optim_state()[name] = state;
  slot.states.push_back({name, state, state.at});
  return state.values;
}

Slice Optimizer::SliceOf(const Slot& slot, size_t window, int64_t from, int64_t to) const {
  const FlatBuffer& b = *slot.buffer;
  const at::Tensor param = b.OptimParam(), grad = b.OptimGrad(), copy = b.OptimCopy();
  const int64_t at = from - b.optim_begin();
  Slice s;
  s.numel = to - from;
  s.on_device = b.param_shard().is_cuda();
  s.type = param.scalar_type();
  s.param = AddressOf(param, at);
  if (grad.defined()) {
    s.grad = AddressOf(grad, at);
    s.grad_type = grad.scalar_type();
  }
  s.grad_scale = model_->pending_scale();
  if (copy.defined()) {
    s.copy = AddressOf(copy, at);
    s.copy_type = copy.scalar_type();
  }
  s.rounding = {stochastic_, 0, from};
  for (size_t i = 0; i < slot.states.size() && i < s.state.size(); ++i) {
    const Entries entries = EntriesOf(slot, slot.states[i], window, from, to);
    if (entries.count > 0) s.state[i] = AddressOf(slot.states[i].data.values, entries.first);
  }
  return s;
}

Slice Optimizer::SliceOf(const Slot& slot, size_t window) const {
  const Range part = slot.buffer->OptimPart(window);
  return SliceOf(slot, window, part.first, part.second);
}

uint32_t Optimizer::RoundingKey(const Slot& slot, int64_t step) const {
  return RandomBits(RandomBits(seed_, Fnv32(slot.buffer->unit())), static_cast<uint32_t>(step));
}

void Optimizer::CheckCount(size_t groups) const {
  if (groups != groups_) {
    throw Error(absl::StrCat(groups, " groups of options: the optimizer was made with ", groups_));
  }
}

void Optimizer::UseStochasticRounding(uint32_t seed) {
  stochastic_ = true;
  seed_ = seed;
}

Optimizer::Outcome Optimizer::Begin(const ShardedModel::GradSummary** summary, bool in_chunks) {
  model_->CheckComplete();
  Check();
  if (!model_->GradientsReady()) return Outcome::kNothing;
  *summary = &model_->SummarizeGradients();
  if (!(*summary)->finite) {
    ++skipped_;
    return Outcome::kSkipped;
  }
  if (host_pass_ && in_chunks) host_pass_->Reserve(ChunkBytes());
  for (size_t s = 0; s < slots_.size(); ++s) {
    for (size_t i = 0; i < slots_[s].updates.size(); ++i) {
      if ((*summary)->used.at(s)[i]) ++slots_[s].updates[i];
    }
  }
  return Outcome::kReady;
}

bool Optimizer::Step() {
  c10::NoGradGuard no_grad;
  const ShardedModel::GradSummary* summary = nullptr;
  const absl::Cleanup release = [this] {
    if (host_pass_) host_pass_->Release();
  };
  const Outcome outcome = Begin(&summary, /*in_chunks=*/true);
  if (outcome != Outcome::kReady) return outcome == Outcome::kNothing;
  model_->BeginUpdate();
  UpdateTogether(*summary);
  Pass pass(*this);
  size_t i = 0;
  for (Slot& slot : slots_) {
    UpdateSlice(slot, summary->used.at(i++), pass);
    pass.Then([this, &slot] { model_->LaunchUpdate(*slot.buffer); });
  }
  pass.Finish();
  model_->EndUpdate();
  return true;
}

void Optimizer::UpdateSlice(Slot& slot, const Used& used, Pass& pass) {
  FlatBuffer& b = *slot.buffer;
  int64_t begin = 0, end = 0, step = 0;
  size_t first = 0;
  int group = -1;
  const auto flush = [&] {
    pass.Add(slot, first, begin, end, {}, [this, &slot, group, step, first](const Piece& piece) {
      Run run{group, step, first, piece.slice, piece.states};
      run.slice.rounding.key = RoundingKey(slot, step);
      UpdateRun(slot, run);
    });
    begin = end = 0;
  };
  for (size_t i = 0; i < b.windows().size(); ++i) {
    const Range part = b.OptimPart(i);
    if (!used[i] || part.first >= part.second || !RunsOver(slot, i)) continue;
    if (end != part.first || group != slot.group[i] || step != slot.updates[i] || !merge_runs_) {
      flush();
      begin = part.first;
      first = i;
      group = slot.group[i];
      step = slot.updates[i];
    }
    end = part.second;
  }
  flush();
  b.MarkCopied();
}

std::vector<double> Optimizer::GroupNorms(double p) {
  c10::NoGradGuard no_grad;
  const GradientNorm norm(p);
  model_->CheckComplete();
  std::vector<double> numbers(GradientNorm::kNumbers * groups_, 0);
  for (const Slot& slot : slots_) {
    const FlatBuffer& b = *slot.buffer;
    if (!model_->GradientsReady() || !b.CountsOptim()) continue;
    const at::Tensor grad = b.OptimGrad();
    for (size_t i = 0; i < b.windows().size(); ++i) {
      const Range part = b.OptimPart(i);
      norm.Add(grad.narrow(0, part.first - b.optim_begin(), part.second - part.first),
               &numbers[GradientNorm::kNumbers * slot.group[i]]);
    }
  }
  at::Tensor all =
      at::tensor(numbers, at::kDouble)
          .to(slots_.empty() ? at::Device(at::kCPU) : slots_[0].buffer->param_shard().device());
  model_->WorldComm().AllReduce(all, norm.op(), {"root", "", ""}).Wait();
  all = all.cpu();
  const double* v = all.const_data_ptr<double>();
  std::vector<double> norms;
  for (size_t g = 0; g < groups_; ++g) {
    norms.push_back(norm.Of(v + GradientNorm::kNumbers * g) * std::abs(model_->pending_scale()));
  }
  return norms;
}

std::vector<std::vector<size_t>> Optimizer::Teams() const {
  std::vector<std::vector<size_t>> teams;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const auto axes = [&](size_t i) { return slots_[i].buffer->plan().optim.SplitAxes(); };
    const auto team = std::find_if(teams.begin(), teams.end(),
                                   [&](const auto& t) { return axes(t[0]) == axes(s); });
    if (team == teams.end()) {
      teams.push_back({s});
    } else {
      team->push_back(s);
    }
  }
  return teams;
}

DTensor Optimizer::StatePart(const Slot& slot, size_t window, const at::Tensor& part) const {
  const FlatBuffer& b = *slot.buffer;
  return WindowPart(b.windows()[window], b.plan().optim, part, model_->mesh());
}

std::vector<std::pair<std::string, DTensor>> Optimizer::Export(const Slot& slot,
                                                               size_t window) const {
  std::vector<std::pair<std::string, DTensor>> out;
  const Range part = slot.buffer->OptimPart(window);
  for (const State& state : slot.states) {
    if (state.data.at[window] < 0) continue;
    const at::Tensor values =
        state.data.values.narrow(0, state.data.at[window], part.second - part.first);
    out.emplace_back(state.name, StatePart(slot, window, values));
  }
  return out;
}

void Optimizer::Import(Slot& slot, size_t window, const std::string& name, const at::Tensor& part) {
  for (const State& state : slot.states) {
    if (state.name != name) continue;
    state.data.values.narrow(0, state.data.at[window], part.numel()).copy_(part.reshape({-1}));
  }
}

std::vector<Optimizer::Record> Optimizer::Records() const {
  std::vector<Record> out;
  for (const Slot& slot : slots_) {
    for (size_t i = 0; i < slot.updates.size(); ++i) {
      out.push_back({slot.buffer->windows()[i].name, slot.updates[i], Export(slot, i)});
    }
  }
  return out;
}

void Optimizer::Load(const std::vector<Loaded>& loaded) {
  c10::NoGradGuard no_grad;
  for (const Loaded& x : loaded) {
    const auto place = places_.find(x.name);
    if (place == places_.end()) throw Error(absl::StrCat("no parameter '", x.name, "' here"));
    const auto mine = Export(slots_[place->second.slot], place->second.window);
    for (const auto& [name, part] : x.parts) {
      const auto it = std::find_if(mine.begin(), mine.end(),
                                   [&](const auto& state) { return state.first == name; });
      const int64_t want = it == mine.end() ? -1 : it->second.ToLocal().numel();
      if (want != part.numel()) {
        throw Error(absl::StrCat(
            "parameter '", x.name, "', state '", name, "': ", part.numel(),
            " elements on this rank, ",
            want < 0 ? "but there is no such state" : absl::StrCat("expected ", want)));
      }
    }
  }
  std::map<std::string, const Loaded*> by_name;
  for (const Loaded& x : loaded) by_name[x.name] = &x;
  for (Slot& slot : slots_) {
    for (size_t i = 0; i < slot.updates.size(); ++i) {
      const auto found = by_name.find(slot.buffer->windows()[i].name);
      const Loaded* x = found == by_name.end() ? nullptr : found->second;
      slot.updates[i] = x ? x->updates : 0;
      for (const auto& [name, state] : Export(slot, i)) {
        // A part may be the state itself: nothing is cleared before it has been read.
        at::Tensor part;
        if (x) {
          for (const auto& [given, values] : x->parts) {
            if (given == name) part = values;
          }
        }
        Import(slot, i, name, part.defined() ? part : at::zeros_like(state.ToLocal()));
      }
    }
  }
}

}  // namespace lins
