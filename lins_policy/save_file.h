// Writing a file whole or not at all.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lins {

// To a temporary name beside `path`, then renamed. On an error `path` is what it was.
absl::Status SaveFile(const std::string& path, absl::string_view content);

}  // namespace lins
