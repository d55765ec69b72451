// Reduction operators, as written in layouts (`+sum(gpu)`) and used by collectives.
#pragma once

#include <optional>
#include <string_view>

namespace lins {

enum class ReduceOp { kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor };

std::string_view ReduceOpName(ReduceOp op);  // "sum", "avg", "min", "max", "product", "band", ...
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

}  // namespace lins
