// World::GatherTexts, and CheckAgreement: fingerprints first, the values themselves only when they
// differ.
#include <ATen/ATen.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/world.h"
#include "mesh/error.h"
#include "mesh/fnv.h"

namespace lins {
namespace {

constexpr size_t kShown = 300;  // characters of a value in the message
constexpr size_t kListed = 4;   // ranks in the message

// The values of all ranks, on the CPU; each rank passes a CPU tensor of counts[rank] elements.
at::Tensor Gather(Communicator& world, const at::Tensor& own, const Counts& counts,
                  c10::DeviceType device) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const at::Tensor out = at::empty({total}, own.options().device(device));
  world.AllGather(out, own.to(device), counts).Wait();
  return out.cpu();
}

std::string Shown(const std::string& value) {
  if (value.size() <= kShown) return value;
  return absl::StrCat(value.substr(0, kShown), "... (", value.size(), " characters)");
}

}  // namespace

std::vector<std::string> World::GatherTexts(const std::string& text) {
  if (size_ == 1) return {text};
  Communicator& world = Everyone(Role::kOther);
  const at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  const at::Tensor all = Gather(world, length, Counts(size_, 1), device_);
  const Counts lengths(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + size_);
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor texts = Gather(world, bytes, lengths, device_);
  const char* next = reinterpret_cast<const char*>(texts.const_data_ptr());
  std::vector<std::string> out;
  for (const int64_t n : lengths) {
    out.emplace_back(next, n);
    next += n;
  }
  return out;
}

void World::CheckAgreement(const std::string& what, const std::string& value) {
  if (size_ == 1) return;
  Communicator& world = Everyone(Role::kOther);

  const at::Tensor own = at::empty({2}, at::kLong);
  own.data_ptr<int64_t>()[0] = static_cast<int64_t>(Fnv64(value));
  own.data_ptr<int64_t>()[1] = static_cast<int64_t>(value.size());
  const at::Tensor all = Gather(world, own, Counts(size_, 2), device_);
  const int64_t* pairs = all.data_ptr<int64_t>();
  bool agree = true;
  for (int64_t r = 0; r < size_; ++r) {
    agree &= pairs[2 * r] == pairs[0] && pairs[2 * r + 1] == pairs[1];
  }
  if (agree) return;

  std::string first;
  std::vector<std::string> shown;
  size_t differing = 0;
  const std::vector<std::string> texts = GatherTexts(value);
  for (int64_t r = 0; r < size_; ++r) {
    const std::string& text = texts[r];
    if (r == 0) first = text;
    if (r > 0 && text == first) continue;
    differing += r > 0;
    if (shown.size() < kListed) shown.push_back(absl::StrCat("rank ", r, " has ", Shown(text)));
  }
  std::string more;
  if (differing >= kListed) more = absl::StrCat(" (", differing, " ranks differ from rank 0)");
  throw Error(absl::StrCat("ranks disagree about ", what, ": ", absl::StrJoin(shown, ", "), more));
}

}  // namespace lins
