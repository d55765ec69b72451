#include "lins_policy/optimizer_bytes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"

namespace lins {

absl::Span<const std::pair<absl::string_view, int64_t>> OptimizerBytes() {
  static constexpr std::pair<absl::string_view, int64_t> kBytes[] = {
      {"adamw", 8}, {"adam", 8},      {"amsgrad", 12},  {"sgd", 0}, {"sgd_momentum", 4},
      {"lion", 4},  {"adamw8bit", 2}, {"adafactor", 0}, {"muon", 4}};
  return kBytes;
}

absl::StatusOr<int64_t> MomentBytes(absl::string_view optimizer) {
  for (const auto& [name, bytes] : OptimizerBytes()) {
    if (name == optimizer) return bytes;
  }
  const auto name = [](std::string* out, const auto& entry) { absl::StrAppend(out, entry.first); };
  return InvalidArgument("unknown optimizer '", optimizer, "': legal are ",
                         absl::StrJoin(OptimizerBytes(), ", ", name));
}

}  // namespace lins
