// A cursor over a short notation, whose errors point at the character.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lins {

class Scanner {
 public:
  explicit Scanner(absl::string_view text) : text_(text) {}

  bool AtEnd() const { return pos_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[pos_]; }
  size_t pos() const { return pos_; }
  void set_pos(size_t pos) { pos_ = pos; }

  // Skips spaces; true when at least one was there.
  bool SkipSpaces();
  // Takes `token` if it comes next (after spaces).
  bool Take(absl::string_view token);
  absl::Status Expect(absl::string_view token);
  // [A-Za-z_][A-Za-z0-9_]*, or "" when none comes next.
  absl::string_view Name();
  absl::StatusOr<int64_t> Integer(absl::string_view what);

  // InvalidArgument: the message, the text, and a caret under position `at` (default: here).
  absl::Status Error(absl::string_view message) const { return ErrorAt(pos_, message); }
  absl::Status ErrorAt(size_t at, absl::string_view message) const;

 private:
  absl::string_view text_;
  size_t pos_ = 0;
};

}  // namespace lins
