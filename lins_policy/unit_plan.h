// The plan of one unit: the layouts of its states, and the four redistributions of a training step.
//
// A unit's parameters lie in one flat buffer of `total` elements (padded to a multiple of OS's
// pieces). The three states are prefixes of one shard chain (`gpu` neighbours, the rest of `gpu`,
// then `node`), so every transition between them only lengthens or shortens a split:
//
//   gather      P -> R                       before the unit computes, forward and backward
//   regather    between -> R                 in the backward, where P stays elsewhere in between
//   accumulate  +sum(all) -> G +sum(rest)    after the backward of each micro-batch
//   reduce      G +sum(rest) -> OS           after the last micro-batch, once per step
//   update      OS -> P                      after the optimizer
//
// That is the family `planned`, whose redistributions are the cheapest there are. In the family
// `paper` (Lins, IWQoS 2024) a gradient is first scattered over P's pieces, then summed by
// all-reduces of which a rank keeps its part, and the owners of OS broadcast their slots:
//
//   scatter     +sum(all) -> P +sum(rest)    after the backward of each micro-batch
//   accumulate  P +sum(rest) -> G +sum(..)   after each but the last: all-reduce, select and drop
//   reduce      P +sum(rest) -> OS           after the last, the accumulated gradient added before
//   update      OS -> P                      one broadcast from each owner within a piece of P
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lins_policy/factors.h"
#include "placement/redistribution.h"

namespace lins {

// Bytes per element of each state as it is held and sent. Equal sizes: everything fp32.
struct StateSizes {
  int64_t param = 4, grad = 4;
  int64_t master = 0;   // 0: the owner's slice of P is the master
  int64_t moments = 8;  // of the optimizer, Adam: two times fp32
};

// By which collectives states move.
enum class Family { kPlanned, kPaper };
absl::StatusOr<Family> ParseFamily(absl::string_view name);
absl::string_view FamilyName(Family family);

// The paper's bucket: all-reduces are of at most so many bytes.
constexpr int64_t kDefaultBucketBytes = 512LL << 20;

// Where the states of one flat buffer are. Its shape is {total}.
struct UnitLayouts {
  Layout whole;  // every rank has all of it
  Layout param, optim;
  Layout between;       // of P from the end of a forward to the backward
  Layout contribution;  // +sum over all ranks: what a backward leaves
  Layout grad;          // split like G, +sum over the other axes
  Layout piece;         // split like P, +sum over the other axes
};

struct UnitPlan {
  Policy policy;
  Family family;
  int64_t bucket_bytes;                              // of family paper
  int64_t total;                                     // padded elements
  Layout param, optim, between, contribution, grad;  // as in UnitLayouts
  // scatter: of family paper, where P is cut. The steps of an update of family paper are all
  // broadcasts from OS to P, one for each owner; received bytes leave out a rank's own.
  RedistributionPlan gather, regather, scatter, accumulate, reduce, update;
};

// The axes of a state along the shard chain: the mesh's axes fastest first, cut wherever one of the
// policy's states ends.
Axes ChainAxes(const Policy& policy, const Factors& state, const Mesh& mesh);

// Elements of a buffer that holds `numel` and divides among all ranks, so that every collective on
// it, an all-reduce included, has equal pieces.
int64_t PaddedTotal(int64_t numel, const Mesh& mesh);

// The policy's layouts on a buffer of `total` elements; the policy is valid.
UnitLayouts MakeUnitLayouts(const Policy& policy, int64_t total, const Mesh& mesh);

// Planned: the redistributions are the cheapest by options.cost_model, or by bytes without one. G
// may be cut into fewer pieces than P, but not in family paper.
absl::StatusOr<UnitPlan> MakeUnitPlan(const Policy& policy, int64_t numel, const Mesh& mesh,
                                      const StateSizes& sizes = {}, const PlanOptions& options = {},
                                      Family family = Family::kPlanned,
                                      int64_t bucket_bytes = kDefaultBucketBytes);

// What a rank keeps between steps, in bytes, padding included.
struct StateBytes {
  int64_t param = 0, grad = 0, optim = 0;  // optim: moments and masters
};
StateBytes HeldBytes(const UnitPlan& plan, const StateSizes& sizes);

// What the worst rank receives in one training step of `micro_batches`, by moment, in bytes.
struct StepTraffic {
  int64_t gather = 0, accumulate = 0, reduce = 0, update = 0;  // gather: of forwards and backwards
  int64_t total() const { return gather + accumulate + reduce + update; }
};
StepTraffic Traffic(const UnitPlan& plan, int64_t micro_batches);

}  // namespace lins
