#include "lins_policy/json_reader.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_join.h"
#include "mesh/error.h"

namespace lins {
namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 64;

std::string Short(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view what) {
  std::string problem;
  std::vector<std::set<std::string>> keys;
  // Returning false only drops a value: the problem is what counts.
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMostDepth && problem.empty()) {
      problem = absl::StrCat("nested deeper than ", kMostDepth);
    }
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second &&
        problem.empty()) {
      problem = absl::StrCat("the key ", Short(value), " is there twice in one object");
    }
    return true;
  };
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& e) {  // the parser's own text has line, column and what it saw
    const absl::string_view message = e.what();
    return InvalidArgument(what, ": no valid JSON: ", message.substr(message.find("] ") + 2));
  }
  if (!problem.empty()) return InvalidArgument(what, ": ", problem);
  return document;
}

void JsonPlace::Fail(absl::string_view why) const {
  if (!status_->ok()) return;
  *status_ = InvalidArgument(what_, ": ", path_.empty() ? "the document" : path_, " ", why);
}

JsonPlace JsonPlace::Child(const Json* value, std::string path) const {
  JsonPlace out(value, what_, status_);
  out.path_ = std::move(path);
  return out;
}

bool JsonPlace::Has(absl::string_view key) const {
  return value_ && value_->is_object() && value_->contains(std::string(key));
}

JsonPlace JsonPlace::At(absl::string_view key) const {
  const std::string path = absl::StrCat(path_, path_.empty() ? "" : ".", key);
  if (Has(key)) return Child(&value_->at(std::string(key)), path);
  if (value_) {
    value_->is_object() ? Child(nullptr, path).Fail("is missing")
                        : Fail(absl::StrCat("is ", Short(*value_), ", must be an object"));
  }
  return Child(nullptr, path);
}

std::vector<JsonPlace> JsonPlace::Items() const {
  std::vector<JsonPlace> out;
  if (!value_) return out;
  if (!value_->is_array()) {
    Fail(absl::StrCat("is ", Short(*value_), ", must be a list"));
    return out;
  }
  for (size_t i = 0; i < value_->size(); ++i) {
    out.push_back(Child(&(*value_)[i], absl::StrCat(path_, "[", i, "]")));
  }
  return out;
}

std::vector<std::pair<std::string, JsonPlace>> JsonPlace::Members() const {
  std::vector<std::pair<std::string, JsonPlace>> out;
  if (!value_) return out;
  if (!value_->is_object()) {
    Fail(absl::StrCat("is ", Short(*value_), ", must be an object"));
    return out;
  }
  for (const auto& [key, value] : value_->items()) {
    out.emplace_back(key, Child(&value, absl::StrCat(path_, path_.empty() ? "" : ".", key)));
  }
  return out;
}

void JsonPlace::AllowOnly(std::initializer_list<absl::string_view> keys) const {
  for (const auto& [key, place] : Members()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      place.Fail(absl::StrCat("is unknown: legal are ", absl::StrJoin(keys, ", ")));
    }
  }
}

int64_t JsonPlace::Int(int64_t low, int64_t high) const {
  if (!value_) return 0;
  const bool fits = value_->is_number_unsigned()
                        ? value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                        : value_->is_number_integer();
  if (!fits || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    Fail(absl::StrCat("is ", Short(*value_), ": legal are whole numbers from ", low, " to ", high));
    return 0;
  }
  return value_->get<int64_t>();
}

double JsonPlace::Number() const {
  if (!value_) return 0;
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) {
    Fail(absl::StrCat("is ", Short(*value_), ", must be a number"));
    return 0;
  }
  return value_->get<double>();
}

std::string JsonPlace::String() const {
  if (!value_) return "";
  if (!value_->is_string()) {
    Fail(absl::StrCat("is ", Short(*value_), ", must be a string"));
    return "";
  }
  return value_->get<std::string>();
}

}  // namespace lins
