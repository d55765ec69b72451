#include "mesh/reduce_op.h"

#include <array>

namespace lins {
namespace {
constexpr std::array<absl::string_view, 8> kNames = {"sum",     "avg",  "min", "max",
                                                     "product", "band", "bor", "bxor"};
}  // namespace

absl::string_view ReduceOpName(ReduceOp op) { return kNames[static_cast<size_t>(op)]; }

std::optional<ReduceOp> ParseReduceOp(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

}  // namespace lins
