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
    int64_t codes = 0, scales = 0;
    std::vector<Part> parts;
    for (size_t i = 0; i < b.windows().size(); ++i) {
      const Range part = b.OptimPart(i);
      const int64_t n = part.second - part.first;
      parts.push_back({codes, scales});
      codes += n;
      scales += (n + kQuantBlock - 1) / kQuantBlock;
    }
    parts_.push_back(std::move(parts));
    const auto bytes = b.OptimParam().options().dtype(at::kByte);
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      AddOther(slot, absl::StrCat(state, "_codes"), at::zeros({codes}, bytes));
      AddOther(slot, absl::StrCat(state, "_scales"), at::zeros({scales}, bytes));
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

uint8_t* At(const at::Tensor& bytes, int64_t at) { return bytes.mutable_data_ptr<uint8_t>() + at; }

}  // namespace

void AdamW8bit::UpdateRun(Slot& slot, const Run& run) {
  const Part& part = PartOf(slot, run.window);
  const auto state = [&](int i) { return slot.states[i].data.values; };
  Slice slice = run.slice;
  slice.state = {};
  Adam8bitUpdate(groups_[run.group], run.step, slice,
                 {At(state(0), part.code), At(state(1), part.scale), At(state(2), part.code),
                  At(state(3), part.scale)});
}

std::vector<std::pair<std::string, DTensor>> AdamW8bit::Export(const Slot& slot,
                                                               size_t window) const {
  std::vector<std::pair<std::string, DTensor>> out;
  const Range range = slot.buffer->OptimPart(window);
  const int64_t n = range.second - range.first;
  const Part& part = PartOf(slot, window);
  for (int i : {0, 1}) {
    const at::Tensor values = at::empty({n}, slot.buffer->OptimParam().options());
    Dequantize(i == 0 ? Code::kSigned : Code::kUnsigned,
               At(slot.states[2 * i].data.values, part.code),
               At(slot.states[2 * i + 1].data.values, part.scale), n,
               values.mutable_data_ptr<float>(), values.is_cuda());
    out.emplace_back(i == 0 ? "exp_avg" : "exp_avg_sq", StatePart(slot, window, values));
  }
  return out;
}

void AdamW8bit::Import(Slot& slot, size_t window, const std::string& name, const at::Tensor& part) {
  const int i = name == "exp_avg" ? 0 : 1;
  const Part& where = PartOf(slot, window);
  const at::Tensor values = part.reshape({-1}).to(slot.buffer->OptimParam().options()).contiguous();
  Quantize(i == 0 ? Code::kSigned : Code::kUnsigned, values.const_data_ptr<float>(), values.numel(),
           At(slot.states[2 * i].data.values, where.code),
           At(slot.states[2 * i + 1].data.values, where.scale), values.is_cuda());
}

}  // namespace lins
