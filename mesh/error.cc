#include "mesh/error.h"

#include <cstdio>
#include <cstdlib>

namespace lins {

void ThrowIfError(const absl::Status& status) {
  if (status.ok()) return;
  const bool runtime = !absl::IsInvalidArgument(status) && !absl::IsOutOfRange(status);
  throw Error(std::string(status.message()), runtime ? Error::Kind::kRuntime : Error::Kind::kValue);
}

void CheckFailed(const char* file, int line, const char* what, const std::string& why) {
  std::fprintf(stderr, "lins: internal error at %s:%d: %s is false. %s\n", file, line, what,
               why.c_str());
  std::abort();
}

}  // namespace lins
