#include "runtime/adam.h"

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "optim/adam8bit.h"

namespace lins {
AdamW::AdamW(std::shared_ptr<ShardedModel> model, std::vector<AdamOptions> groups,
             const GroupOf& group_of)
    : Optimizer(std::move(model), groups.size(), group_of), groups_(std::move(groups)) {
  for (const AdamOptions& g : groups_) amsgrad_.push_back(g.amsgrad);
  for (Slot& slot : slots_) {
    const auto all = [](size_t) { return true; };
    AddState(slot, "exp_avg", all);
    AddState(slot, "exp_avg_sq", all);
    bool any = false;
    for (int g : slot.group) any = any || amsgrad_[g];
    if (any) AddState(slot, "max_exp_avg_sq", [&](size_t i) { return amsgrad_[slot.group[i]]; });
  }
}

void AdamW::Check() const {
  CheckCount(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].amsgrad != amsgrad_[g]) {
      throw Error(
          absl::StrCat("group ", g, " was made with amsgrad=", amsgrad_[g], ": it stays so"));
    }
  }
}

void AdamW::UpdateRun(Slot&, const Run& run) {
  AdamUpdate(groups_[run.group], run.step, run.slice);
}

Adam::Adam(std::shared_ptr<ShardedModel> model, std::vector<AdamOptions> groups,
           const GroupOf& group_of)
    : AdamW(std::move(model), std::move(groups), group_of) {}

void Adam::UpdateRun(Slot&, const Run& run) {
  AdamOptions options = groups()[run.group];
  options.decoupled = false;
  AdamUpdate(options, run.step, run.slice);
}

AdamW8bit::AdamW8bit(std::shared_ptr<ShardedModel> model, std::vector<AdamOptions> groups,
                     const GroupOf& group_of)
    : Optimizer(std::move(model), groups.size(), group_of), groups_(std::move(groups)) {
  merge_runs_ = false;
  Check();
  for (Slot& slot : slots_) {
    FlatBuffer& b = *slot.buffer;
    if (b.types().master != at::kFloat) {
      throw Error(absl::StrCat("8-bit moments belong to fp32 masters; those of unit '", b.unit(),
                               "' are ", c10::toString(b.types().master)));
    }
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      AddBlocks(slot, absl::StrCat(state, "_codes"), at::kByte, 1);
      AddBlocks(slot, absl::StrCat(state, "_scales"), at::kByte, kQuantBlock);
    }
  }
}

void AdamW8bit::Check() const {
  CheckCount(groups_.size());
  for (const AdamOptions& g : groups_) {
    if (g.amsgrad) throw Error("8-bit AdamW has no amsgrad: legal is amsgrad=False");
  }
}

namespace {

// Where a window's entries of a state begin.
template <typename State>
uint8_t* At(const State& state, size_t window) {
  return state.data.values.template mutable_data_ptr<uint8_t>() + state.at[window];
}

}  // namespace

void AdamW8bit::UpdateRun(Slot&, const Run& run) {
  const auto state = [&](int i) { return static_cast<uint8_t*>(run.states[i]); };
  Slice slice = run.slice;
  slice.state = {};
  Adam8bitUpdate(groups_[run.group], run.step, slice, {state(0), state(1), state(2), state(3)});
}

std::vector<std::pair<std::string, DTensor>> AdamW8bit::Export(const Slot& slot,
                                                               size_t window) const {
  std::vector<std::pair<std::string, DTensor>> out;
  const Range range = slot.buffer->OptimPart(window);
  const int64_t n = range.second - range.first;
  for (int i : {0, 1}) {
    const State &codes = slot.states[2 * i], &scales = slot.states[2 * i + 1];
    const at::Tensor values = at::empty({n}, codes.data.values.options().dtype(at::kFloat));
    Dequantize(i == 0 ? Code::kSigned : Code::kUnsigned, At(codes, window), At(scales, window), n,
               values.mutable_data_ptr<float>(), values.is_cuda());
    out.emplace_back(i == 0 ? "exp_avg" : "exp_avg_sq", StatePart(slot, window, values));
  }
  return out;
}

void AdamW8bit::Import(Slot& slot, size_t window, const std::string& name, const at::Tensor& part) {
  const int i = name == "exp_avg" ? 0 : 1;
  const State &codes = slot.states[2 * i], &scales = slot.states[2 * i + 1];
  const at::Tensor values =
      part.reshape({-1}).to(codes.data.values.device(), at::kFloat).contiguous();
  Quantize(i == 0 ? Code::kSigned : Code::kUnsigned, values.const_data_ptr<float>(), values.numel(),
           At(codes, window), At(scales, window), values.is_cuda());
}

}  // namespace lins
