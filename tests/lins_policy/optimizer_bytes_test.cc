#include "lins_policy/optimizer_bytes.h"

#include <gtest/gtest.h>

namespace lins {
namespace {

TEST(MomentBytes, KnowsEveryNameAndListsThemForAnother) {
  EXPECT_EQ(*MomentBytes("adamw"), 8);
  EXPECT_EQ(*MomentBytes("adamw8bit"), 2);
  const auto unknown = MomentBytes("adamax");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("'adamax'"), std::string::npos);
  for (const auto& [name, bytes] : OptimizerBytes()) {
    EXPECT_EQ(*MomentBytes(name), bytes);
    EXPECT_NE(unknown.status().message().find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace lins
