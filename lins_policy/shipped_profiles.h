// The profiles in lins_policy/profiles/, compiled into the library (cmake/embed.cmake).
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace lins {

struct ShippedProfile {
  absl::string_view name, json;
};
std::vector<ShippedProfile> ShippedProfiles();  // by name

}  // namespace lins
