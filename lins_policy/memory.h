// What a rank needs of its GPU's memory under a plan, item by item, in bytes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "lins_policy/model_spec.h"
#include "lins_policy/optimizer_time.h"
#include "lins_policy/pricing.h"

namespace lins {

struct MemoryOptions {
  int64_t gathered_units = 2;                // whole units alive at once: prefetch depth + 1
  int64_t gradient_buckets = 2;              // unreduced gradients of a unit alive at once
  bool fp32_gradient_copy = false;           // 4 bytes per parameter of OS's piece at the update
  int64_t communicator_bytes = 256LL << 20;  // all communicators of a rank
  double margin = 0.03;                      // fragmentation, as a part of all other items
  // Measured peak less predicted total of a plan that has run: added to every prediction.
  int64_t correction_bytes = 0;
  bool offload = false;  // OS in host memory, updated in chunks (optimizer_time.h)
  int64_t offload_chunk_bytes = kDefaultOffloadChunkBytes;
  friend bool operator==(const MemoryOptions&, const MemoryOptions&) = default;
};

struct MemoryItems {
  int64_t param = 0, grad = 0, optim = 0;  // kept between steps; optim: moments and masters
  int64_t staging = 0;      // of OS in host memory, the chunks that are being updated
  int64_t gathered = 0;     // whole units during compute, and pieces kept between fwd and bwd
  int64_t buckets = 0;      // gradients not yet reduced
  int64_t fp32_copies = 0;  // of gradients, during the update
  int64_t activations = 0, logits = 0;
  int64_t communicators = 0;
  int64_t correction = 0;
  int64_t margin = 0;
  int64_t host_optim = 0;  // OS that is in host memory: no item, and not in the total
  int64_t states() const { return param + grad + optim; }
  int64_t total() const;
  // (name, bytes) of every item but the total, in the order above.
  std::vector<std::pair<absl::string_view, int64_t>> List() const;
};

// One copy of a unit under a policy: what adds up over units, and what only the largest needs.
// The unit "root" computes from the beginning of a forward to its end: what it gathers, and the
// gradients that it collects, stay while other units come and go, so they add up.
struct UnitMemory {
  int64_t param = 0, grad = 0, optim = 0, kept = 0, collected = 0, owned_fp32 = 0;  // these add up
  int64_t gathered = 0, bucket = 0;  // of these the largest counts
  int64_t host_optim = 0;            // adds up, in host memory
  int64_t sum() const { return param + grad + optim + kept + collected + owned_fp32; }
};
UnitMemory MemoryOfUnit(const Unit& unit, const Policy& policy, const Mesh& mesh,
                        const StateSizes& sizes, const MemoryOptions& options);

// A model of few units, the root aside, never has more of them alive.
int64_t AliveAtOnce(const ModelSpec& spec, int64_t limit);

// What no placement changes: activations, logits, communicators, correction, staging; margin not in
// it.
MemoryItems FixedMemory(const ModelSpec& spec, const Mesh& mesh, const MemoryOptions& options);

// The whole: one policy per unit of the spec. Both families reduce in place of the gradients that
// they have collected: the size of the paper's bucket needs no memory.
MemoryItems MemoryOf(const ModelSpec& spec, const std::vector<Policy>& policies, const Mesh& mesh,
                     const MemoryOptions& options);

}  // namespace lins
