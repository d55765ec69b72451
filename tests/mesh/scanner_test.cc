#include "mesh/scanner.h"

#include <gtest/gtest.h>

namespace lins {
namespace {

TEST(ScannerTest, ReadsNamesNumbersAndTokens) {
  Scanner in("  gpu_0 : 42,rest");
  EXPECT_EQ(in.Name(), "gpu_0");
  EXPECT_FALSE(in.Take(","));
  EXPECT_TRUE(in.Take(":"));
  EXPECT_EQ(*in.Integer("a size"), 42);
  EXPECT_TRUE(in.Expect(",").ok());
  EXPECT_EQ(in.Peek(), 'r');
  EXPECT_EQ(in.Name(), "rest");
  EXPECT_TRUE(in.AtEnd());
  EXPECT_EQ(in.Peek(), '\0');
  EXPECT_EQ(in.Name(), "");
}

TEST(ScannerTest, ANameDoesNotBeginWithADigit) {
  Scanner in("4gpu");
  EXPECT_EQ(in.Name(), "");
  EXPECT_EQ(*in.Integer("a size"), 4);
  EXPECT_EQ(in.Name(), "gpu");
}

TEST(ScannerTest, SkipSpacesTellsWhetherThereWereAny) {
  Scanner in("a \t b");
  EXPECT_FALSE(in.SkipSpaces());
  EXPECT_EQ(in.Name(), "a");
  EXPECT_TRUE(in.SkipSpaces());
  EXPECT_EQ(in.pos(), 4u);
}

TEST(ScannerTest, ErrorsShowTheTextAndACaret) {
  Scanner in("ab  c");
  in.Name();
  EXPECT_EQ(in.Integer("a size").status().message(),
            "expected a size, a whole number\n  ab  c\n      ^");
  EXPECT_EQ(in.Expect(")").message(), "expected ')'\n  ab  c\n      ^");
  EXPECT_EQ(in.ErrorAt(1, "no").message(), "no\n  ab  c\n   ^");
  EXPECT_TRUE(absl::IsInvalidArgument(in.Error("no")));
}

TEST(ScannerTest, ANumberTooLargeIsAnError) {
  EXPECT_TRUE(Scanner("9223372036854775807").Integer("n").ok());
  EXPECT_FALSE(Scanner("9223372036854775808").Integer("n").ok());
}

}  // namespace
}  // namespace lins
