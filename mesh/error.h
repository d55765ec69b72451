// How lins reports errors.
//
// Pure folders return absl::Status with the offending values and what would be legal in the
// message. At the API boundary a Status becomes a lins::Error (Python: lins.LinsError). A
// contradiction inside lins itself is a LINS_CHECK, which aborts with the place and the values.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lins {

// A user's mistake (kValue) or a failure at run time such as a time-out (kRuntime).
class Error : public std::runtime_error {
 public:
  enum class Kind { kValue, kRuntime };
  explicit Error(const std::string& message, Kind kind = Kind::kValue)
      : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// Throws an Error when the status is not OK; otherwise hands out the value.
void ThrowIfError(const absl::Status& status);
template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

[[noreturn]] void CheckFailed(const char* file, int line, const char* what, const std::string& why);

}  // namespace lins

#define LINS_CHECK(condition, ...)                                                    \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::lins::CheckFailed(__FILE__, __LINE__, #condition, absl::StrCat(__VA_ARGS__)); \
  } while (false)

#define LINS_RETURN_IF_ERROR(expr)                                                \
  do {                                                                            \
    if (absl::Status lins_status = (expr); !lins_status.ok()) return lins_status; \
  } while (false)

#define LINS_CONCAT_INNER(a, b) a##b
#define LINS_CONCAT(a, b) LINS_CONCAT_INNER(a, b)
// LINS_ASSIGN_OR_RETURN(auto x, F()): x = *F(), or return F's error.
#define LINS_ASSIGN_OR_RETURN(lhs, expr) \
  LINS_ASSIGN_IMPL(LINS_CONCAT(lins_or_, __LINE__), lhs, expr)
#define LINS_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                     \
  if (!tmp.ok()) return tmp.status();    \
  lhs = *std::move(tmp)
