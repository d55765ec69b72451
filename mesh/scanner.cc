#include "mesh/scanner.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lins {

bool Scanner::SkipSpaces() {
  const size_t before = pos_;
  while (!AtEnd() && absl::ascii_isspace(text_[pos_])) ++pos_;
  return pos_ != before;
}

bool Scanner::Take(absl::string_view token) {
  SkipSpaces();
  if (text_.substr(pos_, token.size()) != token) return false;
  pos_ += token.size();
  return true;
}

absl::Status Scanner::Expect(absl::string_view token) {
  if (Take(token)) return absl::OkStatus();
  return Error(absl::StrCat("expected '", token, "'"));
}

absl::string_view Scanner::Name() {
  SkipSpaces();
  const size_t begin = pos_;
  while (!AtEnd() && (absl::ascii_isalpha(text_[pos_]) || text_[pos_] == '_' ||
                      (pos_ > begin && absl::ascii_isdigit(text_[pos_])))) {
    ++pos_;
  }
  return text_.substr(begin, pos_ - begin);
}

absl::StatusOr<int64_t> Scanner::Integer(absl::string_view what) {
  SkipSpaces();
  const size_t begin = pos_;
  while (!AtEnd() && absl::ascii_isdigit(text_[pos_])) ++pos_;
  int64_t value;
  if (!absl::SimpleAtoi(text_.substr(begin, pos_ - begin), &value)) {
    return ErrorAt(begin, absl::StrCat("expected ", what, ", a whole number"));
  }
  return value;
}

absl::Status Scanner::ErrorAt(size_t at, absl::string_view message) const {
  return absl::InvalidArgumentError(
      absl::StrCat(message, "\n  ", text_, "\n  ", std::string(at, ' '), "^"));
}

}  // namespace lins
