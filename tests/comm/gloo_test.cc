// The transport over Gloo: ranks are threads here, but the bytes go through sockets.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <string>
#include <thread>

#include "mesh/error.h"
#include "tests/comm/ranks.h"
#include "tests/comm/sweep.h"

namespace lins {
namespace {

using testing::AllRanks;
using testing::RunGloo;

class GlooSweep : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlooSweep, ::testing::Values(2, 3, 4));

TEST_P(GlooSweep, EveryCollectiveMatchesItsFormula) {
  RunGloo(GetParam(), [](World& world) {
    Communicator& c = world.Get(AllRanks(world), Role::kGather);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const int64_t n : {0, 1, 7}) testing::SweepCollectives(c, n, dtype);
    }
    testing::SweepCollectives(c, 100003, at::kFloat);
  });
}

TEST_P(GlooSweep, ManyOperationsInFlightOverTwoRoles) {
  RunGloo(GetParam(), [](World& world) {
    const int64_t k = world.size(), r = world.rank();
    Communicator& reduce = world.Get(AllRanks(world), Role::kReduce);
    Communicator& gather = world.Get(AllRanks(world), Role::kGather);
    std::vector<at::Tensor> sums, outs;
    std::vector<Work> works;
    for (int64_t i = 0; i < 12; ++i) {
      sums.push_back(at::full({20000 + i}, r + i, at::kFloat));
      outs.push_back(at::empty({k * 3000}, at::kFloat));
      works.push_back(reduce.AllReduce(sums[i], ReduceOp::kSum));
      works.push_back(gather.AllGather(outs[i], at::full({3000}, r + i, at::kFloat)));
    }
    std::swap(works[0], works[20]);
    for (Work& work : works) work.Wait();
    for (int64_t i = 0; i < 12; ++i) {
      const float want = k * (k - 1) / 2 + k * i;
      if (!(sums[i] == want).all().item<bool>()) throw Error("all_reduce");
      if (outs[i][k * 3000 - 1].item<float>() != k - 1 + i) throw Error("all_gather");
    }
  });
}

// Gloo itself ends the process of a rank that receives more than it expects.
TEST(Gloo, RanksThatDisagreeAboutSizeTypeOrOperationTimeOutWithAHint) {
  const std::function<Work(Communicator&, int64_t)> mistakes[] = {
      [](Communicator& c, int64_t rank) {
        const at::Tensor x = at::ones({4 + rank});
        return c.AllReduce(x, ReduceOp::kSum);
      },
      [](Communicator& c, int64_t rank) {
        return c.AllReduce(at::ones({4}, rank == 0 ? at::kFloat : at::kInt), ReduceOp::kSum);
      },
      [](Communicator& c, int64_t rank) {
        return c.AllReduce(at::ones({4}), rank == 0 ? ReduceOp::kSum : ReduceOp::kMax);
      },
      [](Communicator& c, int64_t rank) {
        return rank == 0 ? c.AllGather(at::ones({8}), at::ones({4}))
                         : c.AllToAll(at::ones({8}), at::ones({8}));
      }};
  for (const auto& mistake : mistakes) {
    std::string errors[2];
    std::latch both(2);  // a world that is gone has closed its connections
    RunGloo(
        2,
        [&](World& world) {
          try {
            mistake(world.Get({0, 1}, Role::kReduce), world.rank()).Wait();
          } catch (const Error& e) {
            errors[world.rank()] = e.what();
          }
          both.arrive_and_wait();
        },
        /*timeout=*/0.5);
    int hints = 0;  // the one that gives up first closes the connection
    for (const std::string& error : errors) {
      const bool hint =
          error.find("calls another operation, or for another unit") != std::string::npos;
      EXPECT_TRUE(hint || error.find("given up waiting: see its own error") != std::string::npos)
          << error;
      hints += hint;
    }
    EXPECT_GE(hints, 1);
  }
}

TEST(Gloo, CompletesWithoutWaitAndSaysSo) {
  RunGloo(2, [](World& world) {
    Communicator& c = world.Get({0, 1}, Role::kReduce);
    const at::Tensor sum = at::ones({50000}), out = at::empty({2000});
    Work reduce = c.AllReduce(sum, ReduceOp::kSum);
    Work gather = c.AllGather(out, at::ones({1000}));
    for (int i = 0; i < 5000 && !(reduce.Done() && gather.Done()); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!reduce.Done() || !gather.Done()) throw Error("never done");
    if (sum[49999].item<float>() != 2) throw Error("sum");
  });
}

TEST(Gloo, DroppedOperationsStillReachTheOthers) {
  RunGloo(2, [](World& world) {
    Communicator& c = world.Get({0, 1}, Role::kGather);
    for (int i = 0; i < 20; ++i) {
      const at::Tensor x = at::full({40000}, world.rank() == 0 ? 5.0f : 0.0f);
      Work work = c.Broadcast(x, 0);
      if (world.rank() == 1) {
        work.Wait();
        if (x[39999].item<float>() != 5) throw Error("broadcast");
      }
    }
  });
}

TEST(Gloo, TimeOutNamesTheOperationAndThePeer) {
  std::string message;
  RunGloo(
      2,
      [&](World& world) {
        Communicator& c = world.Get({0, 1}, Role::kReduce);
        c.Barrier().Wait();
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(600));
          return;
        }
        Work work = c.AllGather(at::zeros({6}), at::zeros({3}), {}, {.unit = "head"});
        try {
          work.Wait();
        } catch (const Error& e) {
          message = e.what();
        }
      },
      0.2);
  for (const char* part :
       {"all_gather failed on rank 0 for unit 'head'", "role reduce", "sequence 1", "24 bytes",
        "time-out 0.2 s", "receiving from rank 1", "imed out"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Gloo, APeerThatLeavesIsAnErrorNotAHang) {
  std::string message;
  RunGloo(
      2,
      [&](World& world) {
        Communicator& c = world.Get({0, 1}, Role::kReduce);
        c.Barrier().Wait();
        if (world.rank() == 1) return;
        try {
          c.AllReduce(at::zeros({100000}), ReduceOp::kSum).Wait();
        } catch (const Error& e) {
          message = e.what();
        }
      },
      10.0);
  EXPECT_NE(message.find("all_reduce failed on rank 0"), std::string::npos) << message;
}

TEST(Gloo, TwoWorldsShareAStore) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  testing::RunRanks(2, [&](int64_t rank) {
    const auto first = World::Gloo(store, rank, 2, 10.0),
               second = World::Gloo(store, rank, 2, 10.0);
    for (World* world : {second.get(), first.get()}) {
      const at::Tensor x = at::ones({1});
      world->Get({1, 0}, Role::kOther).AllReduce(x, ReduceOp::kSum).Wait();
      if (x.item<float>() != 2) throw Error("sum");
    }
  });
}

TEST(Gloo, DelaysChangeNoValue) {
  RunGloo(2, [](World& world) {
    if (world.rank() == 0) world.context().AddDelay({}, 0.002);
    Communicator& c = world.Get({0, 1}, Role::kReduce);
    testing::SweepCollectives(c, 7, at::kFloat);
    testing::SweepCollectives(c, 30001, at::kFloat);
  });
}

}  // namespace
}  // namespace lins
