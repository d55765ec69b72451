// The inputs of a plan, to JSON and back. Reading is strict (json_reader.h).
#pragma once

#include "lins_policy/json_reader.h"
#include "lins_policy/plan.h"

namespace lins {

nlohmann::json ModelToJson(const ModelSpec& spec);
nlohmann::json ClusterToJson(const Cluster& cluster);  // the profile in it whole
nlohmann::json SettingsToJson(const PlanSettings& settings);

ModelSpec ModelFromJson(const JsonPlace& json);
Cluster ClusterFromJson(const JsonPlace& json);
PlanSettings SettingsFromJson(const JsonPlace& json);

}  // namespace lins
