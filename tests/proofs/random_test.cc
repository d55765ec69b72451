// Random redistributions on random meshes: planned, run and compared with plain arrays.
//
// The suite runs kCases from fixed seeds. `make fuzz` runs LINS_FUZZ of them from fresh seeds;
// LINS_FUZZ_CASE=ranks/seed runs one again, as a failure prints it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "placement/redistribution.h"
#include "tests/proofs/random_case.h"

namespace lins::testing {
namespace {

constexpr int64_t kCases = 24'000;
constexpr int64_t kMostRanks = 12;

TEST(Random, RedistributionsOnMeshesOfUpToTwelveRanksAreExact) {
  if (const char* one = std::getenv("LINS_FUZZ_CASE")) {
    const std::vector<std::string> parts = absl::StrSplit(one, '/');
    int64_t ranks = 0;
    uint64_t seed = 0;
    ASSERT_TRUE(parts.size() == 2 && absl::SimpleAtoi(parts[0], &ranks) &&
                absl::SimpleAtoi(parts[1], &seed))
        << "LINS_FUZZ_CASE=" << one << " is not ranks/seed";
    const Case c = RandomCase(ranks, seed);
    std::cout << PlanRedistribution(c.src, c.dst, 1)->ToString() << "\n";
    const Tally tally = RunCases(ranks, 1, [&](int64_t) { return c; });
    EXPECT_TRUE(tally.failures.empty()) << absl::StrJoin(tally.failures, "\n\n");
    return;
  }
  int64_t count = kCases;
  uint64_t base = 0;
  if (const char* given = std::getenv("LINS_FUZZ")) {
    ASSERT_TRUE(absl::SimpleAtoi(given, &count)) << "LINS_FUZZ=" << given << " is not a number";
    base = static_cast<uint64_t>(std::random_device()()) << 32;
  }
  int64_t cases = 0, steps = 0, collectives = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    const Tally tally = RunCases(ranks, (count + kMostRanks - 1) / kMostRanks, [&](int64_t i) {
      return RandomCase(ranks, base + static_cast<uint64_t>(i));
    });
    EXPECT_TRUE(tally.failures.empty()) << "on " << ranks << " ranks\n"
                                        << absl::StrJoin(tally.failures, "\n\n");
    cases += tally.cases;
    steps += tally.steps;
    collectives += tally.collectives;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::cout << absl::StrFormat(
                     "random, up to %d ranks, seeds from %d: %d cases, %d steps, "
                     "%d collectives, %.0f s\n",
                     ranks, base, cases, steps, collectives, took.count())
              << std::flush;
  }
}

}  // namespace
}  // namespace lins::testing
