#include "mesh/error.h"

#include <gtest/gtest.h>

#include "mesh/reduce_op.h"

namespace lins {
namespace {

TEST(ErrorTest, AUsersMistakeIsAValueErrorAllElseFailedAtRunTime) {
  const auto kind = [](const absl::Status& status) {
    try {
      ThrowIfError(status);
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "why");
      return e.kind();
    }
    ADD_FAILURE() << "nothing thrown";
    return Error::Kind::kValue;
  };
  EXPECT_EQ(kind(absl::InvalidArgumentError("why")), Error::Kind::kValue);
  EXPECT_EQ(kind(absl::OutOfRangeError("why")), Error::Kind::kValue);
  EXPECT_EQ(kind(absl::DeadlineExceededError("why")), Error::Kind::kRuntime);
  EXPECT_EQ(kind(absl::InternalError("why")), Error::Kind::kRuntime);
}

TEST(ErrorTest, NothingIsThrownWhenAllIsWell) {
  EXPECT_NO_THROW(ThrowIfError(absl::OkStatus()));
  EXPECT_EQ(ValueOrThrow(absl::StatusOr<int>(3)), 3);
  EXPECT_THROW(ValueOrThrow(absl::StatusOr<int>(InvalidArgument("got ", 3))), Error);
}

absl::StatusOr<int> Halve(int n) {
  if (n % 2 != 0) return InvalidArgument(n, " is odd");
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  LINS_ASSIGN_OR_RETURN(const int half, Halve(n));
  LINS_RETURN_IF_ERROR(Halve(half).status());
  return half / 2;
}

TEST(ErrorTest, MacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(7).status().message(), "7 is odd");
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
}

TEST(ErrorTest, AContradictionAbortsWithTheValues) {
  const int two = 2;
  EXPECT_DEATH(LINS_CHECK(two == 3, "two is ", two), "two == 3 is false. two is 2");
}

TEST(ReduceOpTest, NamesRoundTrip) {
  for (const char* name : {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"}) {
    ASSERT_TRUE(ParseReduceOp(name)) << name;
    EXPECT_EQ(ReduceOpName(*ParseReduceOp(name)), name);
  }
  for (const char* name : {"", "Sum", "mean", "su"}) EXPECT_FALSE(ParseReduceOp(name)) << name;
}

}  // namespace
}  // namespace lins
