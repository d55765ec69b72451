// FNV-1a: a hash that is the same in every process and build. For agreement, not against forgery.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lins {

constexpr uint64_t kFnvBasis64 = 0xcbf29ce484222325, kFnvPrime64 = 0x100000001b3;

constexpr uint64_t Fnv64(absl::string_view text) {
  uint64_t hash = kFnvBasis64;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime64;
  return hash;
}

constexpr uint32_t Fnv32(absl::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

}  // namespace lins
