#include "runtime/verification.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "comm/trace.h"
#include "kernels/checksum.h"
#include "kernels/device.h"
#include "mesh/error.h"
#include "mesh/fnv.h"
#include "runtime/sharded_model.h"

namespace lins {

uint64_t Checksum(const at::Tensor& tensor) {
  const at::Tensor t = tensor.contiguous();
  const size_t nbytes = t.nbytes();
  if (t.is_cuda() && device::Compiled()) {
    const at::Tensor sum = at::zeros({1}, t.options().dtype(at::kLong));
    device::Checksum(t.const_data_ptr(), static_cast<int64_t>(nbytes),
                     static_cast<uint64_t*>(sum.mutable_data_ptr()));
    return FinishChecksum(static_cast<uint64_t>(sum.item<int64_t>()), nbytes);
  }
  const at::Tensor host = t.cpu();
  const char* data = static_cast<const char*>(host.const_data_ptr());
  uint64_t sum = 0, word;
  size_t index = 0;
  for (; (index + 1) * sizeof(word) <= nbytes; ++index) {
    std::memcpy(&word, data + index * sizeof(word), sizeof(word));
    sum += ChecksumWord(word, index);
  }
  if (const size_t rest = nbytes - index * sizeof(word); rest > 0) {
    word = 0;
    std::memcpy(&word, data + index * sizeof(word), rest);
    sum += ChecksumWord(word, index);
  }
  return FinishChecksum(sum, nbytes);
}

Verification::~Verification() {
  if (trace_ >= 0) model_.mesh().world().context().StopTrace(trace_);
}

void Verification::Start() {
  if (trace_ < 0) trace_ = model_.mesh().world().context().StartTrace();
}

template <typename Fn>
void Verification::ForEachBuffer(Fn fn) const {
  int64_t item = 0;
  for (size_t u = 0; u < model_.units().size(); ++u) {
    for (const auto& b : model_.units()[u]->buffers) {
      fn(static_cast<int>(u), *b, item);
      item += static_cast<int64_t>(b->windows().size());
    }
  }
}

void Verification::NoteParameters(int unit, bool backward) {
  Start();
  const int64_t use = uses_[{unit, backward}]++;
  ForEachBuffer([&](int u, const FlatBuffer& b, int64_t item) {
    if (u != unit) return;
    for (const at::Tensor& p : b.params()) {
      notes_.push_back({backward ? kBackward : kForward, item++, use, 0, Checksum(p.detach())});
    }
  });
}

void Verification::NoteSlots(int64_t kind, int64_t first_item, const FlatBuffer& buffer,
                             const Layout& layout, const at::Tensor& slot) {
  const Range held = layout.RangesOf(model_.mesh().rank())[0];
  for (const Window& w : buffer.windows()) {
    const auto [begin, end] = w.PartIn(held);
    const int64_t item = first_item++;
    if (begin >= end) continue;
    notes_.push_back(
        {kind, item, begin, 0, Checksum(slot.narrow(0, begin - held.first, end - begin))});
  }
}

void Verification::NoteGradients() {
  c10::NoGradGuard no_grad;
  Start();
  ForEachBuffer([&](int, const FlatBuffer& b, int64_t item) {
    if (b.trainable()) NoteSlots(kGradient, item, b, b.plan().optim, b.OptimGrad());
  });
}

void Verification::NoteStates() {
  c10::NoGradGuard no_grad;
  Start();
  ForEachBuffer([&](int, const FlatBuffer& b, int64_t item) {
    // Causes before effects: the first difference is the one that is named.
    int64_t kind = kOptim;
    for (const auto& [name, state] : b.optim_state()) {
      for (size_t i = 0; i < b.windows().size(); ++i) {
        const auto [begin, end] = b.OptimPart(i);
        if (state.at[i] < 0 || begin >= end) continue;
        notes_.push_back({kind, item + static_cast<int64_t>(i), begin, 0,
                          Checksum(state.values.narrow(0, state.at[i], end - begin))});
      }
      ++kind;
    }
    if (b.master()) NoteSlots(kMaster, item, b, b.plan().optim, *b.master());
    NoteSlots(kParam, item, b, b.plan().param, b.param_shard());
  });
}

void Verification::NoteOperations() {
  RankContext& context = model_.mesh().world().context();
  for (const TraceRecord& r : context.Trace(trace_)) {
    if (r.role == RoleName(Role::kOther)) continue;  // agreements, and the caller's own
    const std::string comm = absl::StrCat("[", absl::StrJoin(r.group, ", "), "], role ", r.role);
    const std::string what = absl::StrCat(r.op, " for unit '", r.unit, "' of ", r.bytes, " bytes");
    // What ranks pass to a collective may differ in size only where its pieces do.
    const std::string same = absl::StrCat(r.op, " ", r.unit, " ", r.axes);
    const int64_t item = static_cast<int64_t>(Fnv64(comm));
    notes_.push_back(
        {kOperation, item, r.sequence, static_cast<int64_t>(r.group.size()), Fnv64(same)});
    operations_[{item, r.sequence}] = absl::StrCat(what, " (group ", comm, ")");
  }
  context.StopTrace(trace_);
  trace_ = -1;
}

std::vector<std::vector<Verification::Note>> Verification::Exchange() const {
  const std::string mine(reinterpret_cast<const char*>(notes_.data()),
                         notes_.size() * sizeof(Note));
  std::vector<std::vector<Note>> all;
  for (const std::string& text : model_.mesh().world().GatherTexts(mine)) {
    std::vector<Note>& notes = all.emplace_back(text.size() / sizeof(Note));
    if (!text.empty()) std::memcpy(notes.data(), text.data(), text.size());
  }
  return all;
}

std::pair<const Verification::Note*, std::string> Verification::FindDifference(
    const std::vector<std::vector<Note>>& all, bool final) const {
  using Key = std::tuple<int64_t, int64_t, int64_t>;
  std::map<Key, std::map<uint64_t, std::vector<size_t>>> ranks_by_value;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const Note& n : all[rank]) {
      ranks_by_value[{n.kind, n.item, n.position}][n.value].push_back(rank);
    }
  }
  // In the order in which the first rank that has them noted them.
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const Note& n : all[rank]) {
      const auto& values = ranks_by_value.at({n.kind, n.item, n.position});
      std::vector<std::string> parts;
      size_t count = 0;
      for (const auto& [value, ranks] : values) {
        count += ranks.size();
        parts.push_back(absl::StrCat("rank", ranks.size() > 1 ? "s " : " ",
                                     absl::StrJoin(ranks, ", "), ": ",
                                     absl::StrFormat("%016x", value)));
      }
      if (values.size() > 1) return {&n, absl::StrCat("differs, ", absl::StrJoin(parts, "; "))};
      if (n.kind == kOperation && final && static_cast<int64_t>(count) < n.group) {
        return {&n, absl::StrCat("has begun on ", parts[0].substr(0, parts[0].find(':')),
                                 " only, of ", n.group)};
      }
    }
  }
  return {nullptr, ""};
}

void Verification::DropOperations(const std::vector<std::vector<Note>>& all) {
  std::map<std::pair<int64_t, int64_t>, int64_t> noted;
  for (const auto& notes : all) {
    for (const Note& n : notes) {
      if (n.kind == kOperation) ++noted[{n.item, n.position}];
    }
  }
  std::erase_if(notes_, [&](const Note& n) {
    if (n.kind != kOperation) return true;
    if (noted[{n.item, n.position}] < n.group) return false;  // some rank has not begun it
    operations_.erase({n.item, n.position});
    return true;
  });
}

std::string Verification::Subject(const Note& note) const {
  if (note.kind == kOperation) {
    const auto known = operations_.find({note.item, note.position});
    return known == operations_.end()
               ? ""
               : absl::StrCat("operation ", note.position, ", here ", known->second, ",");
  }
  std::string subject;
  ForEachBuffer([&](int, const FlatBuffer& b, int64_t first) {
    const int64_t i = note.item - first;
    if (i < 0 || i >= static_cast<int64_t>(b.windows().size())) return;
    std::string what;
    switch (note.kind) {
      case kForward:
        absl::StrAppend(&what, "the value before forward ", note.position, " of the unit");
        break;
      case kBackward:
        absl::StrAppend(&what, "the value before backward ", note.position, " of the unit");
        break;
      case kGradient:
        what = "the reduced gradient";
        break;
      case kParam:
        what = "the value after the update";
        break;
      case kMaster:
        what = "the master after the update";
        break;
      default:
        what = std::next(b.optim_state().begin(), note.kind - kOptim)->first;
        absl::StrAppend(&what, " after the update");
    }
    subject =
        absl::StrCat(what, " of parameter '", b.windows()[i].name, "' in unit '", b.unit(), "'");
  });
  return subject;
}

void Verification::Compare(const std::string& when, bool final) {
  Start();
  NoteOperations();
  uses_.clear();
  const std::vector<std::vector<Note>> all = Exchange();
  const auto [note, text] = FindDifference(all, final);
  if (note == nullptr) {
    DropOperations(all);
    return;
  }
  // Not every rank knows what an operation was.
  const std::vector<std::string> subjects = model_.mesh().world().GatherTexts(Subject(*note));
  const std::string& own = subjects[model_.mesh().rank()];
  std::string subject = own;
  for (const std::string& s : subjects) {
    if (subject.empty()) subject = s;
  }
  if (note->kind == kOperation) {
    for (size_t r = 0; r < subjects.size(); ++r) {
      if (!subjects[r].empty() && subjects[r] != subject)
        absl::StrAppend(&subject, " on rank ", r, " ", subjects[r]);
    }
  }
  notes_.clear();
  operations_.clear();
  throw Error(absl::StrCat("verify: step ", model_.steps(), ", found after ", when, ": ", subject,
                           " ", text),
              Error::Kind::kRuntime);
}

}  // namespace lins
