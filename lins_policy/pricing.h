// What one unit costs under one policy: seconds and received bytes of each redistribution of a
// training step.
//
// Two families of collectives:
//   planned   the five redistributions of the unit's plan (unit_plan.h), the cheapest by the
//             profile; received bytes are those that the runtime's trace shows
//   paper     all-gathers and reduce-scatters over P, bucketed all-reduces of what G and OS need,
//             and broadcasts from the owners (Lins, IWQoS 2024):
//               T_p   = M (2 t(AG, S, p) + t(RS, S, p))
//               T_g   = (M-1) (S / (U s_p)) t(AR, U, g/p)
//               T_os0 = (S / (U s_p)) t(AR, U, dp/p)
//               T_os1 = (s_os / s_p) t(BC, S / s_os, os/p)
//             with S the bytes of the parameters, U those of a bucket, M micro-batches.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "lins_policy/model_spec.h"
#include "lins_policy/profile.h"

namespace lins {

// One of each, of one copy of the unit. Everything but `once` happens in every micro-batch.
template <typename T>
struct Moments {
  T gather = 0;      // P -> R before the forward
  T regather = 0;    // and before the backward
  T scatter = 0;     // paper: the gradient over P; planned: part of accumulate and reduce
  T accumulate = 0;  // the gradient to G, after every micro-batch but the last
  T reduce = 0;      // the gradient to OS, after the last one
  T update = 0;      // OS -> P
};

struct UnitPrice {
  Moments<double> seconds;
  Moments<int64_t> bytes;  // received by the worst rank
};

// Seconds (or bytes) of a step of M micro-batches, by the paper's terms.
template <typename T>
struct CostTerms {
  T t_p = 0, t_g = 0, t_os0 = 0, t_os1 = 0;
  T total() const { return t_p + t_g + t_os0 + t_os1; }
};
template <typename T>
void AddTerms(const Moments<T>& m, int64_t copies, int64_t micro_batches, CostTerms<T>& sum) {
  sum.t_p += copies * micro_batches * (m.gather + m.regather + m.scatter);
  sum.t_g += copies * (micro_batches - 1) * m.accumulate;
  sum.t_os0 += copies * m.reduce;
  sum.t_os1 += copies * m.update;
}

// One collective behind a price.
struct PricedCollective {
  absl::string_view term;  // T_p, T_g, T_os0, T_os1
  StepKind op;
  int64_t bytes, gpus, nodes;
  double times;  // in one step, of one copy of the unit
  Estimate each;
};

class Pricer {
 public:
  // The profile outlives the pricer.
  Pricer(Mesh mesh, const Profile* profile, const StateSizes& sizes, Family family,
         int64_t bucket_bytes);

  // The policy is legal. Remembers transitions, so that units alike and policies that share one
  // cost nothing more.
  absl::StatusOr<UnitPrice> Price(const Unit& unit, const Policy& policy);
  // Only what depends on P, G and `between`: gather, regather, scatter, accumulate, and of reduce
  // what of it does. Never more than Price().
  absl::StatusOr<UnitPrice> PriceOfMicroBatch(const Unit& unit, const Policy& policy);

  // Paper: the update of a whole model of `parameters` under one policy, as the formula has it:
  // each owner broadcasts its piece of all units at once.
  double PaperUpdate(int64_t parameters, const Policy& policy) const;

  // The collectives of a step, for explanations. M >= 1.
  absl::StatusOr<std::vector<PricedCollective>> Collectives(const Unit& unit, const Policy& policy,
                                                            int64_t micro_batches) const;

  const Mesh& mesh() const { return mesh_; }
  Family family() const { return family_; }

 private:
  struct Transition {
    double seconds = 0;
    int64_t bytes = 0;
  };
  absl::StatusOr<Transition> Find(const Layout& src, const Layout& dst, int64_t itemsize);
  absl::StatusOr<UnitPrice> Planned(const Unit& unit, const Policy& policy, bool whole_step);
  struct PaperMessages;
  PaperMessages Messages(const Unit& unit, const Policy& policy) const;
  UnitPrice Paper(const Unit& unit, const Policy& policy) const;

  Mesh mesh_;
  const Profile* profile_;
  StateSizes sizes_;
  Family family_;
  int64_t bucket_bytes_;
  absl::flat_hash_map<std::tuple<Layout, Layout, int64_t>, Transition> known_;
};

}  // namespace lins
