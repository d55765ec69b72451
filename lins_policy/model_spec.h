// What planning needs to know of a model: its units, how large they are, how long they compute.
//
//   ModelSpec m = *ModelSpec::Llama("7B", {.seq_len = 4096, .micro_batch = 1});
//
// Sizes are those of one GPU after tensor and pipeline parallelism, which are given and never
// searched: Parallel() divides a spec by them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lins_policy/unit_plan.h"

namespace lins {

// Parameters that are gathered and reduced together.
struct Unit {
  std::string name;
  int64_t parameters = 0;        // elements, frozen ones included; a tied parameter counts once
  int64_t repeat = 1;            // so many units alike, one after another
  int64_t frozen = 0;            // of `parameters`: they have no gradient and no optimizer state
  double forward_flops = 0;      // of one micro-batch; a backward takes twice as many
  int64_t activation_bytes = 0;  // kept from a forward to its backward, one micro-batch
  int64_t boundary_bytes = 0;    // kept in its place under recomputation: the unit's inputs
  // Measured, of one micro-batch; 0: worked out from the flops.
  double forward_seconds = 0, backward_seconds = 0;
  int64_t trainable() const { return parameters - frozen; }
  friend bool operator==(const Unit&, const Unit&) = default;
};

// Where the states of a unit's trainable parameters are, padded as the runtime pads them.
UnitLayouts LayoutsOf(const Unit& unit, const Policy& policy, const Mesh& mesh);

enum class Recompute { kNone, kFull };  // kFull: units recompute their forward in the backward
absl::StatusOr<Recompute> ParseRecompute(absl::string_view name);
absl::string_view RecomputeName(Recompute recompute);

struct LlamaShape {
  int64_t hidden, layers, ffn, vocabulary = 32000;
  int64_t heads = 0, kv_heads = 0;  // 0: as many of keys and values as of queries
  bool tied = false;                // the head shares the embedding's weights
};

struct TrainingShape {
  int64_t seq_len = 4096;   // tokens of a sequence
  int64_t micro_batch = 1;  // sequences a GPU computes at once
  Recompute recompute = Recompute::kNone;
  StateSizes sizes = {2, 2, 4, 8};  // bf16 parameters and gradients, fp32 masters and moments
};

struct ModelSpec {
  std::string name;
  std::vector<Unit> units = {};  // in the order of the forward
  TrainingShape training = {};
  int64_t logits_bytes = 0;  // alive at the loss, one micro-batch
  // Micro-batches whose activations are alive at once: the stages of a pipeline. Parallel() sets
  // it.
  int64_t in_flight = 1;

  // "7B", "13B", "30B" of the paper.
  static absl::StatusOr<ModelSpec> Llama(absl::string_view size, const TrainingShape& training);
  static absl::StatusOr<ModelSpec> Llama(std::string name, const LlamaShape& shape,
                                         const TrainingShape& training);
  // OK when there are units with distinct names and sizes that make sense.
  absl::Status Validate() const;
  // One GPU's share: each unit's parameters, flops and activations divided by `tensor`, the copies
  // of repeated units by `pipeline`. Errors: factors that do not divide.
  absl::StatusOr<ModelSpec> Parallel(int64_t tensor, int64_t pipeline) const;

  // Another number of sequences at once: flops and activations grow with it.
  absl::StatusOr<ModelSpec> WithMicroBatch(int64_t micro_batch) const;

  int64_t parameters() const;  // all, repeats included
  int64_t trainable() const;   // of them
  int64_t tokens() const { return training.seq_len * training.micro_batch; }
};

}  // namespace lins
