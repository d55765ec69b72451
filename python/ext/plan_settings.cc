#include "plan_settings.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_join.h"
#include "lins_policy/optimizer_bytes.h"
#include "profile.h"

namespace lins {
namespace {

using Setter = std::function<void(PlanInputs&, const py::handle&)>;

template <typename T, typename Struct>
Setter Set(Struct PlanInputs::*part, T Struct::*field) {
  return [=](PlanInputs& in, const py::handle& v) { (in.*part).*field = v.cast<T>(); };
}
template <typename T>
Setter Setting(T PlanSettings::*field) {
  return Set(&PlanInputs::settings, field);
}
template <typename T>
Setter Memory(T MemoryOptions::*field) {
  return [=](PlanInputs& in, const py::handle& v) { in.settings.memory.*field = v.cast<T>(); };
}
template <typename T>
Setter Overlap(T OverlapOptions::*field) {
  return [=](PlanInputs& in, const py::handle& v) { in.settings.overlap.*field = v.cast<T>(); };
}
template <typename T>
Setter Named(T PlanSettings::*field, absl::StatusOr<T> (*parse)(absl::string_view)) {
  return [=](PlanInputs& in, const py::handle& v) {
    in.settings.*field = ValueOrThrow(parse(v.cast<std::string>()));
  };
}

// [(nodes, micro_batches)] or [(nodes, micro_batches, weight)].
void SetScales(PlanInputs& in, const py::handle& v) {
  in.settings.scales.clear();
  if (v.is_none()) return;
  for (const auto& scale : v.cast<std::vector<std::vector<double>>>()) {
    if (scale.size() != 2 && scale.size() != 3) {
      throw Error("a scale is (nodes, micro_batches) or (nodes, micro_batches, weight)");
    }
    for (int i = 0; i < 2; ++i) {
      if (scale[i] != static_cast<double>(static_cast<int64_t>(scale[i]))) {
        throw Error(absl::StrCat("nodes and micro_batches of a scale are whole, not ", scale[i]));
      }
    }
    in.settings.scales.push_back({static_cast<int64_t>(scale[0]), static_cast<int64_t>(scale[1]),
                                  scale.size() == 3 ? scale[2] : 1.0});
  }
}

// In the order in which they are set.
const std::vector<std::pair<std::string, Setter>>& Settings() {
  static const auto* settings = new std::vector<std::pair<std::string, Setter>>{
      {"micro_batches", Setting(&PlanSettings::micro_batches)},
      {"global_tokens",
       [](PlanInputs& in, const py::handle& v) {
         if (v.is_none()) return;
         in.settings.micro_batches =
             ValueOrThrow(MicroBatchesOf(v.cast<int64_t>(), in.spec, in.cluster));
       }},
      {"objective", Named(&PlanSettings::objective, ParseObjective)},
      {"space", Named(&PlanSettings::space, ParseSpace)},
      {"family", Named(&PlanSettings::family, ParseFamily)},
      {"cap_bytes", Setting(&PlanSettings::cap_bytes)},
      {"uniform", Setting(&PlanSettings::uniform)},
      {"split_repeats", Setting(&PlanSettings::split_repeats)},
      {"tie_epsilon", Setting(&PlanSettings::tie_epsilon)},
      {"bucket_bytes", Setting(&PlanSettings::bucket_bytes)},
      {"scales", SetScales},
      // One more unit than the prefetch depth is alive, unless told otherwise.
      {"prefetch",
       [](PlanInputs& in, const py::handle& v) {
         in.settings.overlap.prefetch = v.cast<int64_t>();
         in.settings.memory.gathered_units = in.settings.overlap.prefetch + 1;
       }},
      {"overlap", Overlap(&OverlapOptions::overlap)},
      {"overlap_update", Overlap(&OverlapOptions::overlap_update)},
      {"gathered_units", Memory(&MemoryOptions::gathered_units)},
      {"gradient_buckets", Memory(&MemoryOptions::gradient_buckets)},
      {"fp32_gradient_copy", Memory(&MemoryOptions::fp32_gradient_copy)},
      {"communicator_bytes", Memory(&MemoryOptions::communicator_bytes)},
      {"margin", Memory(&MemoryOptions::margin)},
      {"correction_bytes", Memory(&MemoryOptions::correction_bytes)},
      {"offload", Memory(&MemoryOptions::offload)},
      {"offload_chunk_bytes", Memory(&MemoryOptions::offload_chunk_bytes)},
  };
  return *settings;
}

const std::vector<std::pair<std::string, Setter>>& ClusterFields() {
  static const auto* fields = new std::vector<std::pair<std::string, Setter>>{
      {"nodes", Set(&PlanInputs::cluster, &Cluster::nodes)},
      {"gpus_per_node", Set(&PlanInputs::cluster, &Cluster::gpus_per_node)},
      {"memory_bytes", Set(&PlanInputs::cluster, &Cluster::memory_bytes)},
      {"quota_bytes", Set(&PlanInputs::cluster, &Cluster::quota_bytes)},
      {"flops_per_second", Set(&PlanInputs::cluster, &Cluster::flops_per_second)},
      {"tensor_parallel", Set(&PlanInputs::cluster, &Cluster::tensor_parallel)},
      {"pipeline_parallel", Set(&PlanInputs::cluster, &Cluster::pipeline_parallel)},
      {"host_bandwidth", Set(&PlanInputs::cluster, &Cluster::host_bandwidth)},
      {"memory_bandwidth", Set(&PlanInputs::cluster, &Cluster::memory_bandwidth)},
      {"profile",
       [](PlanInputs& in, const py::handle& v) {
         in.cluster.profile =
             std::make_shared<Profile>(ToProfile(py::reinterpret_borrow<py::object>(v)));
       }},
  };
  return *fields;
}

const std::vector<std::pair<std::string, Setter>>& ModelFields() {
  static const auto* fields = new std::vector<std::pair<std::string, Setter>>{
      {"micro_batch",
       [](PlanInputs& in, const py::handle& v) {
         in.spec = ValueOrThrow(in.spec.WithMicroBatch(v.cast<int64_t>()));
       }},
      {"recompute",
       [](PlanInputs& in, const py::handle& v) {
         in.spec.training.recompute = ValueOrThrow(ParseRecompute(v.cast<std::string>()));
       }},
      {"optimizer",
       [](PlanInputs& in, const py::handle& v) {
         in.spec.training.sizes.moments = ValueOrThrow(MomentBytes(v.cast<std::string>()));
       }},
  };
  return *fields;
}

void Apply(const std::vector<std::pair<std::string, Setter>>& setters, py::dict& given,
           PlanInputs& inputs) {
  for (const auto& [name, set] : setters) {
    if (!given.contains(name.c_str())) continue;
    const py::object value = given[name.c_str()];
    try {
      set(inputs, value);
    } catch (const py::cast_error&) {
      RefuseType(name, value);
    }
    PyDict_DelItemString(given.ptr(), name.c_str());
  }
}

}  // namespace

void ApplySettings(py::dict& given, PlanInputs& inputs) { Apply(Settings(), given, inputs); }
void ApplyCluster(py::dict& given, PlanInputs& inputs) { Apply(ClusterFields(), given, inputs); }
void ApplyModel(py::dict& given, PlanInputs& inputs) { Apply(ModelFields(), given, inputs); }

void RefuseRest(const py::dict& given, const std::string& what, const std::string& legal) {
  if (given.empty()) return;
  std::vector<std::string> names;
  for (const auto& [key, value] : given) names.push_back(key.cast<std::string>());
  throw Error(absl::StrCat(what, " knows no ", absl::StrJoin(names, ", "), ": legal are ",
                           absl::StrJoin(SettingNames(), ", "), legal));
}

const std::vector<std::string>& SettingNames() {
  static const auto* names = [] {
    auto* out = new std::vector<std::string>;
    for (const auto& [name, set] : Settings()) out->push_back(name);
    return out;
  }();
  return *names;
}

}  // namespace lins
