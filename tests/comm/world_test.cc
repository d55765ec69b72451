// Worlds: the cache of communicators, agreement, the end.
#include "comm/world.h"

#include <gtest/gtest.h>

#include <string>

#include "mesh/error.h"
#include "tests/comm/ranks.h"

namespace lins {
namespace {

// What CheckAgreement throws on each rank of a world of n.
std::vector<std::string> Disagreement(bool gloo, const std::vector<std::string>& values) {
  std::vector<std::string> messages(values.size());
  const auto check = [&](World& world) {
    try {
      world.CheckAgreement("the plan", values[world.rank()]);
    } catch (const Error& e) {
      messages[world.rank()] = e.what();
    }
    world.CheckAgreement("nothing", "");  // the communicator is still in step
  };
  gloo ? testing::RunGloo(values.size(), check) : testing::RunWorlds(values.size(), check);
  return messages;
}

TEST(Agreement, PassesSilently) {
  for (const std::string& message : Disagreement(false, {"same", "same", "same"}))
    EXPECT_EQ(message, "");
  for (const std::string& message : Disagreement(true, {"same", "same"})) EXPECT_EQ(message, "");
}

TEST(Agreement, NamesTheRanksThatDifferEverywhere) {
  for (const bool gloo : {false, true}) {
    for (const std::string& message : Disagreement(gloo, {"zero2", "zero2", "zero3"})) {
      EXPECT_EQ(message, "ranks disagree about the plan: rank 0 has zero2, rank 2 has zero3");
    }
  }
  for (const std::string& message : Disagreement(false, {"a", ""})) {
    EXPECT_EQ(message, "ranks disagree about the plan: rank 0 has a, rank 1 has ");
  }
}

TEST(Agreement, CutsWhatIsLong) {
  const std::string message =
      Disagreement(false, {std::string(1000, 'x'), "b", "c", "d", "e", "f"})[3];
  EXPECT_NE(message.find("xxx... (1000 characters), rank 1 has b"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 3 has d (5 ranks differ from rank 0)"), std::string::npos)
      << message;
}

TEST(World, KeepsCommunicators) {
  const auto worlds = World::Threads(2);
  Communicator& c = worlds[0]->Get({0, 1}, Role::kGather);
  EXPECT_EQ(&worlds[0]->Get({0, 1}, Role::kGather), &c);
  EXPECT_NE(&worlds[0]->Get({1, 0}, Role::kGather), &c);
  EXPECT_NE(&worlds[0]->Get({0, 1}, Role::kReduce), &c);
  EXPECT_EQ(worlds[0]->Get({1, 0}, Role::kGather).index(), 1);
  EXPECT_EQ(worlds[1]->rank(), 1);
  EXPECT_EQ(worlds[1]->backend(), "threads");
}

TEST(World, IsUnusableAfterShutdown) {
  const auto world = World::Single();
  world->Get({0}, Role::kGather);
  world->Shutdown();
  world->Shutdown();
  EXPECT_THROW(world->Get({0}, Role::kGather), Error);
}

TEST(World, SingleAgreesWithItself) { World::Single()->CheckAgreement("x", "y"); }

}  // namespace
}  // namespace lins
