// Where two JSON documents differ.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace lins {

struct JsonDifference {
  std::string path;  // model.units[1].parameters
  std::string a, b;  // short forms of both values, "-" where there is none
};
std::vector<JsonDifference> DiffJson(const nlohmann::json& a, const nlohmann::json& b,
                                     const std::string& path = "");

// Compact, or indented. Text that is not UTF-8 is mended rather than thrown at.
std::string DumpJson(const nlohmann::json& json, int indent = -1);

}  // namespace lins
