#include "lins_policy/memory.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lins {

int64_t MemoryItems::total() const {
  int64_t n = 0;
  for (const auto& [name, bytes] : List()) n += bytes;
  return n;
}

std::vector<std::pair<absl::string_view, int64_t>> MemoryItems::List() const {
  return {{"param", param},
          {"grad", grad},
          {"optim", optim},
          {"staging", staging},
          {"gathered", gathered},
          {"buckets", buckets},
          {"fp32_copies", fp32_copies},
          {"activations", activations},
          {"logits", logits},
          {"communicators", communicators},
          {"correction", correction},
          {"margin", margin}};
}

namespace {

bool IsRoot(const Unit& unit) { return unit.name == "root"; }

}  // namespace

int64_t AliveAtOnce(const ModelSpec& spec, int64_t limit) {
  int64_t units = 0;
  for (const Unit& u : spec.units) units += IsRoot(u) ? 0 : u.repeat;
  return std::min(limit, units);
}

UnitMemory MemoryOfUnit(const Unit& unit, const Policy& policy, const Mesh& mesh,
                        const StateSizes& sizes, const MemoryOptions& options) {
  const int64_t trainable = PaddedTotal(unit.trainable(), mesh);
  const int64_t all = trainable + PaddedTotal(unit.frozen, mesh);
  const int64_t p = Product(policy.param), g = Product(policy.grad), o = Product(policy.optim);
  UnitMemory m;
  m.param = all / p * sizes.param;
  m.grad = trainable / g * sizes.grad;
  (options.offload ? m.host_optim : m.optim) = trainable / o * (sizes.master + sizes.moments);
  if (options.fp32_gradient_copy) m.owned_fp32 = trainable / o * 4;
  if (p > 1 && !policy.between.empty()) m.kept = all / Product(policy.between) * sizes.param;
  if (p > 1) m.gathered = all * sizes.param;
  // Where G is whole, a backward adds to it in place.
  if (g > 1) m.bucket = trainable * sizes.grad;
  if (IsRoot(unit)) {
    m.kept += std::exchange(m.gathered, 0);
    m.collected = std::exchange(m.bucket, 0);
  }
  return m;
}

MemoryItems FixedMemory(const ModelSpec& spec, const Mesh& mesh, const MemoryOptions& options) {
  MemoryItems m;
  int64_t recomputed = 0;
  for (const Unit& u : spec.units) {
    const bool full = spec.training.recompute == Recompute::kFull;
    m.activations += spec.in_flight * u.repeat * (full ? u.boundary_bytes : u.activation_bytes);
    if (full) recomputed = std::max(recomputed, u.activation_bytes);
    if (options.offload) {
      const StateSizes& sizes = spec.training.sizes;
      const int64_t os = PaddedTotal(u.trainable(), mesh) * (sizes.master + sizes.moments);
      m.staging = std::max(m.staging, StagingBytes(os, options.offload_chunk_bytes));
    }
  }
  m.activations += recomputed;
  m.logits = spec.logits_bytes;
  m.communicators = mesh.size() > 1 ? options.communicator_bytes : 0;
  m.correction = options.correction_bytes;
  return m;
}

MemoryItems MemoryOf(const ModelSpec& spec, const std::vector<Policy>& policies, const Mesh& mesh,
                     const MemoryOptions& options) {
  MemoryItems m = FixedMemory(spec, mesh, options);
  int64_t gathered = 0, bucket = 0;
  for (size_t i = 0; i < spec.units.size(); ++i) {
    const Unit& u = spec.units[i];
    const UnitMemory x = MemoryOfUnit(u, policies[i], mesh, spec.training.sizes, options);
    m.param += u.repeat * x.param;
    m.grad += u.repeat * x.grad;
    m.optim += u.repeat * x.optim;
    m.host_optim += u.repeat * x.host_optim;
    m.fp32_copies += u.repeat * x.owned_fp32;
    m.gathered += u.repeat * x.kept;
    m.buckets += u.repeat * x.collected;
    gathered = std::max(gathered, x.gathered);
    bucket = std::max(bucket, x.bucket);
  }
  m.gathered += AliveAtOnce(spec, options.gathered_units) * gathered;
  m.buckets += AliveAtOnce(spec, options.gradient_buckets) * bucket;
  m.margin = static_cast<int64_t>(std::ceil(options.margin * static_cast<double>(m.total())));
  return m;
}

}  // namespace lins
