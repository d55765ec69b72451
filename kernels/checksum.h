// A checksum of memory that does not depend on the order in which words are read, so that a device
// can take it in parallel and say what the host says. For agreement, not against forgery.
#pragma once

#include <cstdint>

#include "kernels/everywhere.h"

namespace lins {

// What word `index` of 8 bytes (the last one filled up with zeros) adds, modulo 2^64.
LINS_EVERYWHERE uint64_t ChecksumWord(uint64_t word, uint64_t index) {
  // Two rounds of splitmix64's finalizer (Steele et al., 2014), so that words cannot trade places.
  uint64_t x = word ^ (index * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

LINS_EVERYWHERE uint64_t FinishChecksum(uint64_t sum, uint64_t nbytes) {
  return ChecksumWord(sum, ~nbytes);
}

}  // namespace lins
