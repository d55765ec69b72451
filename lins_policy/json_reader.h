// Reading JSON strictly: every mistake is an error that names the place and what is legal.
//
//   absl::Status status;
//   JsonPlace root(&document, "a.json", &status);
//   int64_t nodes = root.At("nodes").Int(1, 1024);
//   LINS_RETURN_IF_ERROR(status);         // a.json: nodes is 0: legal are whole numbers from 1 ...
//
// The first mistake is kept in the status. Reading goes on with zeros and empty values, so that a
// reader runs straight through and asks once at the end.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lins {

// Errors: not JSON (with line and column), a key twice in one object, nested deeper than 64.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view what);

class JsonPlace {
 public:
  JsonPlace(const nlohmann::json* value, std::string what, absl::Status* status)
      : value_(value), what_(std::move(what)), status_(status) {}

  bool Has(absl::string_view key) const;
  JsonPlace At(absl::string_view key) const;  // of an object; missing: a mistake
  std::vector<JsonPlace> Items() const;       // of an array
  std::vector<std::pair<std::string, JsonPlace>> Members() const;  // of an object
  void AllowOnly(std::initializer_list<absl::string_view> keys) const;

  int64_t Int(int64_t low, int64_t high) const;
  double Number() const;  // finite
  std::string String() const;

  // Null after a mistake.
  const nlohmann::json* value() const { return value_; }
  void Fail(absl::string_view why) const;  // "<what>: <path> <why>"
  absl::string_view path() const { return path_; }

 private:
  JsonPlace Child(const nlohmann::json* value, std::string path) const;

  const nlohmann::json* value_;
  std::string what_, path_;
  absl::Status* status_;
};

}  // namespace lins
