#include "lins_policy/json_diff.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace lins {
namespace {

constexpr size_t kLongest = 60;

std::string Brief(const nlohmann::json& x) {
  if (x.is_null()) return "-";
  const std::string text = DumpJson(x);
  return text.size() <= kLongest ? text : absl::StrCat(text.substr(0, kLongest - 3), "...");
}

void Collect(const nlohmann::json& a, const nlohmann::json& b, const std::string& path,
             std::vector<JsonDifference>& out) {
  if (a == b) return;
  if (a.is_object() && b.is_object()) {
    nlohmann::json keys = a;
    keys.update(b);
    for (const auto& [key, unused] : keys.items()) {
      const nlohmann::json none;
      Collect(a.contains(key) ? a[key] : none, b.contains(key) ? b[key] : none,
              path.empty() ? key : absl::StrCat(path, ".", key), out);
    }
  } else if (a.is_array() && b.is_array() && a.size() == b.size()) {
    for (size_t i = 0; i < a.size(); ++i) {
      Collect(a[i], b[i], absl::StrCat(path, "[", i, "]"), out);
    }
  } else {
    out.push_back({path, Brief(a), Brief(b)});
  }
}

}  // namespace

std::vector<JsonDifference> DiffJson(const nlohmann::json& a, const nlohmann::json& b,
                                     const std::string& path) {
  std::vector<JsonDifference> out;
  Collect(a, b, path, out);
  return out;
}

std::string DumpJson(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lins
