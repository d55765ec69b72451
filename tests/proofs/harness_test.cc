// What the other tests of this folder rely on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/proofs/case_runner.h"
#include "tests/proofs/memory_meter.h"
#include "tests/proofs/plain_arrays.h"

namespace lins::testing {
namespace {

TEST(MemoryMeter, CountsWhatIsAliveAtOnceOnThisThread) {
  const at::Tensor before = at::empty({100}, at::kFloat);
  const MemoryMeter meter;
  {
    const at::Tensor a = at::empty({10}, at::kFloat), b = at::empty({5}, at::kDouble);
    EXPECT_EQ(meter.peak(), 80);
  }
  const at::Tensor c = at::empty({15}, at::kFloat);
  EXPECT_EQ(meter.peak(), 80);
  std::thread([] { at::empty({1000}, at::kFloat); }).join();
  EXPECT_EQ(meter.peak(), 80);
  const at::Tensor d = at::empty({10}, at::kFloat);
  EXPECT_EQ(meter.peak(), 100);
}

TEST(PlainArrays, AgreeWithLayoutsOnWhoHoldsWhat) {
  const Mesh mesh = *Mesh::Create({2, 6}, {"a", "b"});
  for (const char* text : {"R", "S0(a)", "S0(b,a)", "S1(b:2@3,a)", "S0(b:3) S1(b:2@3)",
                           "F(a,b; 5/48)", "F(b:2)", "O(a; 1)", "O(b,a; 7)"}) {
    for (const Shape& shape : {Shape{7, 5}, Shape{2, 2}, Shape{0, 3}, Shape{1, 9}}) {
      const Layout layout = *Layout::Parse(text, shape, mesh);
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        EXPECT_EQ(static_cast<int64_t>(Elements(layout, rank).size()), layout.LocalNumel(rank))
            << Describe(layout) << ", rank " << rank;
      }
    }
  }
}

TEST(PlainArrays, ContributionsMakeValuesByTheDefinitionOfTheOperation) {
  const Mesh mesh = *Mesh::Create({2, 3}, {"a", "b"});
  const Layout sum = *Layout::Parse("+sum(a,b)", {4}, mesh);
  const Layout mixed = *Layout::Parse("+avg(b) +max(a)", {4}, mesh);
  const auto rank_number = [](int64_t rank) { return static_cast<double>(rank); };
  EXPECT_EQ(Together(sum, 0, rank_number), 15);
  EXPECT_EQ(Together(mixed, 0, rank_number), 4);  // of 3, 4, 5
}

TEST(RunCases, ReportsTheCaseThatFails) {
  const Mesh mesh = *Mesh::Create({2, 2}, {"a", "b"});
  const Layout r = *Layout::Parse("R", {4}, mesh),
               product = *Layout::Parse("+product(a)", {4}, mesh);
  const Tally tally = RunCases(4, 100, [&](int64_t i) -> std::optional<Case> {
    if (i % 2 == 1) return std::nullopt;
    return Case{r, i == 50 ? product : r, static_cast<uint64_t>(i)};
  });
  ASSERT_EQ(tally.failures.size(), 1u);
  EXPECT_NE(tally.failures[0].find("seed 50, R -> +product(a) of (4,) on Mesh(a=2, b=2)"),
            std::string::npos)
      << tally.failures[0];
}

}  // namespace
}  // namespace lins::testing
