#include "comm/threads_slot.h"

#include <ATen/ATen.h>

#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/reduce.h"
#include "mesh/error.h"

namespace lins {
namespace {

char* Data(const at::Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + offset * tensor.element_size();
}

// Copies n elements unless they are in place already.
void CopyElements(const at::Tensor& out, int64_t out_offset, const at::Tensor& in,
                  int64_t in_offset, int64_t n) {
  char* to = Data(out, out_offset);
  const char* from = Data(in, in_offset);
  if (n > 0 && to != from) std::memcpy(to, from, n * out.element_size());
}

int64_t Numel(const at::Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; }

// Whether two ranks can take part in one operation with these arguments.
bool Match(const ThreadsCall& a, const ThreadsCall& b) {
  if (a.op != b.op || a.unit != b.unit || a.reduce != b.reduce || a.root != b.root) return false;
  if (a.in.defined() && a.in.scalar_type() != b.in.scalar_type()) return false;
  if (a.op == "all_to_all") return true;  // the counts of each pair are compared by Execute
  if (a.op == "all_gather") return a.in_counts == b.in_counts;
  return Numel(a.in) == Numel(b.in) && a.in_counts == b.in_counts;
}

}  // namespace

std::string ThreadsCall::ToString() const {
  const std::string name =
      unit.empty() ? std::string(op) : absl::StrCat(op, " for unit '", unit, "'");
  if (!in.defined()) return name;
  std::string text = absl::StrCat(name, " of ", Numel(op == "all_gather" ? out : in), " ",
                                  c10::toString(in.scalar_type()));
  if (op == "reduce_scatter" || op == "all_reduce") {
    absl::StrAppend(&text, " with ", ReduceOpName(reduce));
  }
  if (op == "broadcast") absl::StrAppend(&text, " from root ", root);
  if (!in_counts.empty()) absl::StrAppend(&text, ", counts ", absl::StrJoin(in_counts, ", "));
  return text;
}

void ThreadsSlot::Arrive(int64_t index, ThreadsCall call) {
  for (size_t other = 0; other < calls.size() && !finished; ++other) {
    if (!calls[other].has_value() || Match(*calls[other], call)) continue;
    Fail(absl::StrCat("ranks disagree: rank ", ranks[other], " calls ", calls[other]->ToString(),
                      "; rank ", ranks[index], " calls ", call.ToString()));
  }
  calls[index] = std::move(call);
  ++arrived;
}

std::string ThreadsSlot::Missing() const {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].has_value()) missing.push_back(ranks[i]);
  }
  return missing.size() == 1
             ? absl::StrCat("rank ", missing[0], ", which has not begun this operation")
             : absl::StrCat("ranks ", absl::StrJoin(missing, ", "),
                            ", which have not begun this operation");
}

void ThreadsSlot::Fail(const std::string& reason) {
  if (finished) return;
  error = reason;
  finished = true;
}

void ThreadsSlot::Execute() {
  try {
    const absl::string_view op = calls[0]->op;
    if (op == "all_gather") AllGather();
    if (op == "reduce_scatter") ReduceScatter();
    if (op == "all_reduce") AllReduce();
    if (op == "all_to_all") AllToAll();
    if (op == "broadcast") Broadcast();
  } catch (const std::exception& e) {
    error = e.what();
  }
  for (auto& call : calls) call->in = call->out = at::Tensor();
}

void ThreadsSlot::AllGather() {
  for (const auto& to : calls) {
    int64_t offset = 0;
    for (const auto& from : calls) {
      CopyElements(to->out, offset, from->in, 0, from->in.numel());
      offset += from->in.numel();
    }
  }
}

void ThreadsSlot::Reduce(void* out, int64_t offset, int64_t n) const {
  std::vector<const void*> parts;
  for (const int64_t index : nodes.order()) parts.push_back(Data(calls[index]->in, offset));
  ReduceInOrder(out, parts, n, calls[0]->in.scalar_type(), calls[0]->reduce, nodes.runs());
}

void ThreadsSlot::ReduceScatter() {
  int64_t offset = 0;
  for (const auto& to : calls) {
    Reduce(Data(to->out, 0), offset, to->out.numel());
    offset += to->out.numel();
  }
}

void ThreadsSlot::AllReduce() {
  const at::Tensor& result = calls[0]->out;
  Reduce(Data(result, 0), 0, result.numel());
  for (const auto& to : calls) CopyElements(to->out, 0, result, 0, result.numel());
}

void ThreadsSlot::AllToAll() {
  const size_t k = calls.size();
  std::vector<int64_t> out_offset(k, 0);
  for (size_t from = 0; from < k; ++from) {
    int64_t in_offset = 0;
    for (size_t to = 0; to < k; ++to) {
      const int64_t sent = calls[from]->in_counts[to], taken = calls[to]->out_counts[from];
      if (sent != taken) {
        throw Error(absl::StrCat("ranks disagree: rank ", ranks[from], " sends ", sent,
                                 " elements to rank ", ranks[to], ", which expects ", taken));
      }
      CopyElements(calls[to]->out, out_offset[to], calls[from]->in, in_offset, sent);
      in_offset += sent;
      out_offset[to] += sent;
    }
  }
}

void ThreadsSlot::Broadcast() {
  const at::Tensor& source = calls[calls[0]->root]->in;
  for (const auto& to : calls) CopyElements(to->out, 0, source, 0, source.numel());
}

}  // namespace lins
