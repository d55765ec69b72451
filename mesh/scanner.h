// A cursor over a short notation, whose errors point at the character.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lins {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool AtEnd() const { return pos_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[pos_]; }
  size_t pos() const { return pos_; }
  void set_pos(size_t pos) { pos_ = pos; }

  // Skips spaces; true when at least one was there.
  bool SkipSpaces();
  // Takes `token` if it comes next (after spaces).
  bool Take(std::string_view token);
  absl::Status Expect(std::string_view token);
  // [A-Za-z_][A-Za-z0-9_]*, or "" when none comes next.
  std::string_view Name();
  absl::StatusOr<int64_t> Integer(std::string_view what);

  // InvalidArgument: the message, the text, and a caret under position `at` (default: here).
  absl::Status Error(std::string_view message) const { return ErrorAt(pos_, message); }
  absl::Status ErrorAt(size_t at, std::string_view message) const;

 private:
  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace lins
