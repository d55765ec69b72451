#include "dtensor/random.h"

#include <ATen/Dispatch.h>

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins {
namespace {

// How many bits of a fraction the dtype holds.
int FractionBits(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 53;
    case at::kFloat:
      return 24;
    case at::kHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      throw Error(absl::StrCat("random numbers are float32, float64, float16 or bfloat16, not ",
                               c10::toString(dtype)));
  }
}

// Philox blocks by number, the last one remembered.
class Blocks {
 public:
  Blocks(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  const PhiloxBlock& operator[](uint64_t number) {
    if (number != number_) {
      number_ = number;
      block_ = Philox(seed_, number, stream_);
    }
    return block_;
  }

 private:
  uint64_t seed_, stream_, number_ = ~uint64_t{0};
  PhiloxBlock block_{};
};

// `words` 1 or 2 from place `at` on, as an integer.
uint64_t Word(const PhiloxBlock& block, int at, int words) {
  return words == 1 ? block[at] : uint64_t{block[at]} << 32 | block[at + 1];
}

class Numbers {
 public:
  Numbers(uint64_t seed, Distribution distribution, int bits)
      : blocks_(seed, distribution == Distribution::kUniform ? 0 : 1),
        bits_(bits),
        words_(bits > 32 ? 2 : 1) {}

  double Uniform(uint64_t i) {
    const uint64_t per_block = 4 / words_;
    const uint64_t word =
        Word(blocks_[i / per_block], static_cast<int>(i % per_block) * words_, words_);
    return std::ldexp(static_cast<double>(word >> (32 * words_ - bits_)), -bits_);
  }

  double Normal(uint64_t i) {
    const uint64_t pairs = 2 / words_, pair = i / 2;
    const PhiloxBlock& block = blocks_[pair / pairs];
    const int at = static_cast<int>(pair % pairs) * 2 * words_;
    const int shift = words_ == 2 ? 11 : 0;  // 53 bits are what a double holds
    const auto fraction = [&](int from) {
      return std::ldexp(static_cast<double>(Word(block, from, words_) >> shift) + 1,
                        shift - 32 * words_);
    };
    const double radius = std::sqrt(-2 * std::log(fraction(at)));
    const double angle = 2 * std::numbers::pi * fraction(at + words_);
    return radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }

 private:
  Blocks blocks_;
  int bits_, words_;
};

// fn(first row-major index in the whole tensor, length) for each run of elements that the rank
// holds, in order.
template <typename Fn>
void ForEachRun(const Layout& layout, int64_t rank, const Fn& fn) {
  const Ranges ranges = layout.RangesOf(rank);
  if (layout.LocalNumel(rank) == 0) return;
  if (layout.IsFlatOrOwned()) return fn(ranges[0].first, ranges[0].second - ranges[0].first);
  const Shape& shape = layout.shape();
  if (shape.empty()) return fn(0, 1);
  const size_t last = shape.size() - 1;
  Shape at;
  for (const Range& r : ranges) at.push_back(r.first);
  while (true) {
    int64_t index = 0;
    for (size_t d = 0; d <= last; ++d) index = index * shape[d] + at[d];
    fn(index, ranges[last].second - ranges[last].first);
    size_t d = last;
    while (d > 0 && ++at[d - 1] == ranges[d - 1].second) {
      at[d - 1] = ranges[d - 1].first;
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace

PhiloxBlock Philox(uint64_t seed, uint64_t counter, uint64_t stream) {
  PhiloxBlock c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                   static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

void FillRandom(const at::Tensor& local, const Layout& layout, int64_t rank, uint64_t seed,
                Distribution distribution) {
  Numbers numbers(seed, distribution, FractionBits(local.scalar_type()));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, local.scalar_type(), "lins_random", [&] {
        scalar_t* out = local.mutable_data_ptr<scalar_t>();
        ForEachRun(layout, rank, [&](int64_t begin, int64_t length) {
          for (int64_t i = begin; i < begin + length; ++i) {
            *out++ = static_cast<scalar_t>(
                distribution == Distribution::kUniform ? numbers.Uniform(i) : numbers.Normal(i));
          }
        });
      });
}

}  // namespace lins
