// The three plans that the paper reports (Lins, IWQoS 2024, table 3), found again.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"
#include "lins_policy/report.h"

namespace lins {

struct Table3Row {
  std::string model;
  Policy paper;  // what the paper prints
  Plan plan;     // what the assumptions give
  bool agrees() const { return plan.factors() == paper; }
};

// Space, family and objective of the paper; each model at the smallest scale at which it fits (M =
// 128, 128, 32 for 4 M tokens); vocabulary 32000, no recomputation, 28 bytes of activations per
// batch x sequence x hidden and layer; temporary memory of an fp32 copy of owned gradients, one
// bucket of 512 MiB, four gathered blocks where P is cut, and the logits; cap 77.3e9 bytes; ties
// within 2 %; profile a800. Consistency with the paper, not prediction: the paper does not state
// these.
absl::StatusOr<std::vector<Table3Row>> ReproduceTable3();

// The rows, the neighbours that decide each, and settings under which a result changes.
absl::StatusOr<Report> ExplainTable3(const std::vector<Table3Row>& rows);

}  // namespace lins
