// Random numbers by place: element i of a tensor is a function of (seed, i) alone.
//
// The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011). Its key is the seed, its counter (block number, stream). Uniform numbers are of stream 0,
// normal ones of 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "placement/layout.h"

namespace lins {

using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock Philox(uint64_t seed, uint64_t counter, uint64_t stream);

enum class Distribution { kUniform, kNormal };

// Fills `local`, which rank holds under the complete `layout`. Element i, counted in row-major
// order in the whole tensor, is:
//   uniform  word i mod 4 of block i / 4, its upper bits (as many as the dtype holds exactly) as a
//   fraction: in
//            [0, 1). Double takes 53 bits of words 2 (i mod 2) and the next, of block i / 2.
//   normal   by Box-Muller from a pair of uniform numbers in (0, 1]: the cosine's for even i, the
//   sine's for odd
//            i, of words 2 (i / 2 mod 2) and the next of block i / 4; of all of block i / 2 for
//            double.
void FillRandom(const at::Tensor& local, const Layout& layout, int64_t rank, uint64_t seed,
                Distribution distribution);

}  // namespace lins
