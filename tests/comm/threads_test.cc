// The transport between threads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "mesh/error.h"
#include "tests/comm/ranks.h"
#include "tests/comm/sweep.h"

namespace lins {
namespace {

using testing::AllRanks;
using testing::RunWorlds;
using ::testing::TestWithParam;

// What a call throws, or "".
template <typename Fn>
std::string Message(Fn fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class ThreadsSweep : public TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ThreadsSweep, ::testing::Range<int64_t>(1, 9));

TEST_P(ThreadsSweep, EveryCollectiveMatchesItsFormula) {
  RunWorlds(GetParam(), [](World& world) {
    Communicator& c = world.Get(AllRanks(world), Role::kGather);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
      for (const int64_t n : {0, 1, 7}) testing::SweepCollectives(c, n, dtype);
    }
  });
}

TEST_P(ThreadsSweep, OneMebibyte) {
  RunWorlds(GetParam(), [](World& world) {
    Communicator& c = world.Get(AllRanks(world), Role::kReduce);
    testing::SweepCollectives(c, (1 << 18) / world.size(), at::kFloat);
  });
}

TEST(Threads, SubgroupsOfEveryRoleWorkSideBySideInTheirOwnOrder) {
  RunWorlds(4, [](World& world) {
    const int64_t r = world.rank();
    Communicator& pair = world.Get(
        r % 2 == 0 ? std::vector<int64_t>{2, 0} : std::vector<int64_t>{1, 3}, Role::kUpdate);
    Communicator& all = world.Get(AllRanks(world), Role::kReduce);
    const at::Tensor sum = at::full({3}, r, at::kFloat);
    Work reduce = all.AllReduce(sum, ReduceOp::kSum);
    const at::Tensor out = at::empty({2}, at::kLong);
    pair.AllGather(out, at::full({1}, r, at::kLong)).Wait();
    reduce.Wait();
    const at::Tensor want = at::tensor(pair.ranks(), at::kLong);
    if (!at::equal(out, want)) throw Error("group order");
    if (!at::equal(sum, at::full({3}, 6, at::kFloat))) throw Error("sum");
  });
}

TEST(Threads, MismatchedCallsFailOnEveryRankNamingBoth) {
  const auto worlds = World::Threads(3, 10.0);
  std::vector<std::string> messages(3);
  testing::RunRanks(3, [&](int64_t rank) {
    Communicator& c = worlds[rank]->Get({0, 1, 2}, Role::kGather);
    const at::Tensor x = at::zeros({4}, at::kFloat);
    messages[rank] = Message([&] {
      if (rank == 1) {
        c.Broadcast(x, 2).Wait();
      } else {
        c.AllReduce(x, ReduceOp::kSum).Wait();
      }
    });
  });
  for (const std::string& message : messages) {
    EXPECT_TRUE(Has(message, "all_reduce of 4 Float with sum")) << message;
    EXPECT_TRUE(Has(message, "rank 1 calls broadcast of 4 Float from root 2")) << message;
  }
}

TEST(Threads, DifferentTypesAndSizesFailOnEveryRank) {
  const auto worlds = World::Threads(2, 10.0);
  std::vector<std::string> types(2), sizes(2), pairs(2);
  testing::RunRanks(2, [&](int64_t rank) {
    Communicator& c = worlds[rank]->Get({0, 1}, Role::kGather);
    types[rank] = Message([&] {
      c.AllReduce(at::zeros({4}, rank == 0 ? at::kFloat : at::kHalf), ReduceOp::kSum).Wait();
    });
    sizes[rank] = Message([&] { c.Broadcast(at::zeros({4 + rank}), 0).Wait(); });
    pairs[rank] = Message([&] {  // rank 1 expects more than rank 0 sends it
      c.AllToAll(at::zeros({2 + rank}), at::zeros({2}), rank == 0 ? Counts{1, 1} : Counts{2, 1})
          .Wait();
    });
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(Has(types[rank], "Float") && Has(types[rank], "Half")) << types[rank];
    EXPECT_TRUE(Has(sizes[rank], "of 4 Float") && Has(sizes[rank], "of 5 Float")) << sizes[rank];
    EXPECT_TRUE(Has(pairs[rank], "rank 0 sends 1 elements to rank 1, which expects 2"))
        << pairs[rank];
  }
}

TEST(Threads, TimeOutNamesTheOperationAndTheMissingRanks) {
  const auto worlds = World::Threads(3, 0.1);
  Communicator& c = worlds[1]->Get({0, 1, 2}, Role::kReduce);
  Work work = c.AllReduce(at::zeros({5}, at::kDouble), ReduceOp::kSum, {.unit = "layers.3"});
  EXPECT_FALSE(work.Done());
  const std::string message = Message([&] { work.Wait(); });
  for (const char* part :
       {"all_reduce failed on rank 1", "unit 'layers.3'", "role reduce", "group [0, 1, 2]",
        "sequence 0", "40 bytes", "time-out 0.1 s", "ranks 0, 2, which have not begun"}) {
    EXPECT_TRUE(Has(message, part)) << part << " in: " << message;
  }
  EXPECT_EQ(Message([&] { work.Wait(); }), message);
  EXPECT_TRUE(work.Done());
  // A rank that comes later learns that the operation is lost, and does not wait.
  const std::string late = Message([&] {
    worlds[0]
        ->Get({0, 1, 2}, Role::kReduce)
        .AllReduce(at::zeros({5}, at::kDouble), ReduceOp::kSum)
        .Wait();
  });
  EXPECT_TRUE(Has(late, "rank 1 timed out")) << late;
}

TEST(Threads, AbortWakesWaitersAndFailsLaterOperations) {
  const auto worlds = World::Threads(2, 60.0);
  std::string waiting, later;
  std::thread waiter([&] {
    Communicator& c = worlds[0]->Get({0, 1}, Role::kGather);
    waiting = Message([&] { c.Barrier().Wait(); });
    later = Message([&] { c.Barrier().Wait(); });
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  worlds[1]->Abort("rank 1 gave up");
  waiter.join();
  EXPECT_TRUE(Has(waiting, "aborted: rank 1 gave up")) << waiting;
  EXPECT_TRUE(Has(later, "aborted: rank 1 gave up")) << later;
  const std::string fresh = Message([&] { worlds[1]->Get({1, 0}, Role::kOther).Barrier().Wait(); });
  EXPECT_TRUE(Has(fresh, "rank 1 gave up")) << fresh;
}

TEST(Threads, WorkMayBeWaitedForFromAnotherThreadAndTwice) {
  RunWorlds(2, [](World& world) {
    const at::Tensor x = at::ones({3});
    Work work = world.Get({0, 1}, Role::kReduce).AllReduce(x, ReduceOp::kSum);
    std::thread([work]() mutable { work.Wait(); }).join();
    work.Wait();
    if (!work.Done() || x[0].item<float>() != 2) throw Error("not done");
  });
}

}  // namespace
}  // namespace lins
