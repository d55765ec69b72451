#include "lins_policy/save_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {

absl::Status SaveFile(const std::string& path, absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  std::ofstream file(temporary, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const std::string why = std::strerror(errno);
  std::remove(temporary.c_str());
  return InvalidArgument("cannot write '", path, "': ", why);
}

}  // namespace lins
