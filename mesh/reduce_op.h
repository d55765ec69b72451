// Reduction operators, as written in layouts (`+sum(gpu)`) and used by collectives.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace lins {

enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor };

absl::string_view ReduceOpName(ReduceOp op);  // "sum", "avg", "min", "max", "product", "band", ...
std::optional<ReduceOp> ParseReduceOp(absl::string_view name);

}  // namespace lins
