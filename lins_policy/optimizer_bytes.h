// What optimizers keep per parameter.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lins {

// (name, bytes per parameter beside masters), of fp32 moments unless said otherwise:
//   adamw, adam 8; amsgrad 12 (of either); sgd 0; sgd_momentum 4; lion 4
//   adamw8bit 2, and 2 per block of 256, which a margin of 0.4 % of it covers
//   adafactor 0, and 4 per row and per column of a matrix on every rank
//   muon 4 for matrices; of the rest it keeps 8, which is for a model's own StateSizes to say
absl::Span<const std::pair<absl::string_view, int64_t>> OptimizerBytes();

// Of one of them; an error that lists the names for any other.
absl::StatusOr<int64_t> MomentBytes(absl::string_view optimizer);

}  // namespace lins
