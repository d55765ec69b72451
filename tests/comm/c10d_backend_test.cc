// The transport over any c10d::Backend, with Gloo's own collectives in the place of NCCL's.
#include "comm/c10d_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/backend.h"
#include "comm/trace.h"
#include "mesh/error.h"
#include "tests/comm/ranks.h"
#include "tests/comm/recorded_nccl.h"
#include "tests/comm/sweep.h"

namespace lins {
namespace {

void RunOverC10d(int64_t k, const std::function<void(Communicator&)>& fn) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  testing::RunRanks(k, [&](int64_t rank) {
    auto options = c10d::ProcessGroupGloo::Options::create_default(std::chrono::seconds(20));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, k, options);
    std::vector<int64_t> ranks(k);
    for (int64_t r = 0; r < k; ++r) ranks[r] = r;
    Communicator c(MakeC10dBackend(group, rank, c10::DeviceType::CPU), ranks, rank, Role::kReduce,
                   20.0, std::make_shared<RankContext>());
    fn(c);
  });
}

TEST(C10dBackend, MatchesTheFormulas) {
  RunOverC10d(3, [](Communicator& c) {
    for (const int64_t n : {1, 7}) {
      testing::SweepReduceScatter(c, n, at::kFloat);
      testing::SweepReduceScatter(c, n, at::kBFloat16);
      testing::SweepAllReduce(c, n, at::kFloat);
      testing::SweepAllToAll(c, n, at::kFloat);
      testing::SweepBroadcast(c, n, at::kFloat);
      const at::Tensor out = at::empty({3 * n});
      c.AllGather(out, at::full({n}, c.index(), at::kFloat)).Wait();
      if (!at::equal(out.view({3, n}), at::arange(3, at::kFloat).view({3, 1}).expand({3, n}))) {
        throw Error("all_gather");
      }
    }
    c.Barrier().Wait();
  });
}

TEST(C10dBackend, BitwiseReductionsAreRefused) {
  RunOverC10d(2, [](Communicator& c) {
    try {
      c.AllReduce(at::ones({2}, at::kLong), ReduceOp::kBor).Wait();
    } catch (const Error& e) {
      if (std::string(e.what()).find("not bor") != std::string::npos) return;
    }
    throw Error("no error");
  });
}

// Ranks as threads over recorded groups.
void RunRecorded(testing::NcclRecorder& recorder, int64_t k,
                 const std::function<void(World&)>& fn) {
  testing::RunRanks(
      k,
      [&](int64_t rank) {
        RankContext::Scope scope(std::make_shared<RankContext>());
        fn(*World::Nccl(recorder.Groups(), c10::DeviceType::CPU, rank, k, 20.0));
      },
      [&](const char* what) { recorder.hub.Abort(what); });
}

TEST(C10dBackend, AsksForTheseCalls) {
  testing::NcclRecorder recorder;
  RunRecorded(recorder, 3, [&](World& world) {
    Communicator& c = world.Everyone(Role::kReduce);
    testing::SweepReduceScatter(c, 7, at::kFloat);
    testing::SweepAllReduce(c, 7, at::kFloat);
    testing::SweepBroadcast(c, 7, at::kFloat);
    recorder.Forget();
    c.Barrier().Wait();
    const at::Tensor in = at::ones({3}), out = at::empty({1});
    c.ReduceScatter(out, in, ReduceOp::kAvg).Wait();
    EXPECT_EQ(out.item<float>(), 1);
    const at::Tensor own = at::full({c.index() == 0 ? 2 : 1}, c.index(), at::kFloat);
    const at::Tensor all = at::empty({4});
    c.AllGather(all, own, {2, 1, 1}).Wait();
    EXPECT_TRUE(at::equal(all, at::tensor({0, 0, 1, 2}, at::kFloat)));
    c.Barrier().Wait();
    const std::vector<int64_t> group = {0, 1, 2};
    const auto calls = recorder.Calls(world.rank());
    ASSERT_GE(calls.size(), 3u);  // sums are sums: no average, no scaled one
    EXPECT_EQ(calls[calls.size() - 3],
              (testing::NcclCall{"reduce", group, "_reduce_scatter_base", 12}));
    EXPECT_EQ(calls[calls.size() - 2], (testing::NcclCall{"reduce", group, "allgather", 16}));
    EXPECT_EQ(calls.back(), (testing::NcclCall{"reduce", group, "allreduce", 4}));
  });
}

TEST(C10dBackend, AGroupOfOperationsIsCoalesced) {
  testing::NcclRecorder recorder;
  RunRecorded(recorder, 2, [&](World& world) {
    Communicator& c = world.Everyone(Role::kUpdate);
    const at::Tensor x = at::full({2, 3}, c.index(), at::kFloat);
    std::vector<Work> works;
    {
      Communicator::Group together(c);
      for (int64_t root = 0; root < 2; ++root) works.push_back(c.Broadcast(x[root], root));
    }
    for (Work& w : works) w.Wait();
    EXPECT_TRUE(at::equal(x[0], at::zeros({3})) && at::equal(x[1], at::ones({3})));
    c.Broadcast(x[0], 0).Wait();
    const auto calls = recorder.Calls(world.rank());
    ASSERT_EQ(calls.size(), 3u);
    EXPECT_EQ(calls[0], (testing::NcclCall{"update", {0, 1}, "broadcast", 12, 1}));
    EXPECT_EQ(calls[0].coalesced, calls[1].coalesced);
    EXPECT_EQ(calls[2].coalesced, 0);
    Communicator::Group empty(c);
  });
}

TEST(C10dBackend, AnOperationIsNotWaitedForWithinItsGroup) {
  testing::NcclRecorder recorder;
  RunRecorded(recorder, 2, [&](World& world) {
    Communicator& c = world.Everyone(Role::kUpdate);
    const at::Tensor x = at::ones({3});
    Communicator::Group together(c);
    Work work = c.Broadcast(x, 0);
    EXPECT_THROW(work.Wait(), Error);
  });
}

void ExpectParts(const std::string& what, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(what.find(part), std::string::npos) << part << ": " << what;
  }
}

TEST(C10dBackend, WhatFailsInWaitIsRaisedThere) {
  testing::NcclRecorder recorder;
  recorder.aborted = [](const testing::NcclCall& call) { return call.op == "broadcast"; };
  RunRecorded(recorder, 2, [&](World& world) {
    Communicator& c = world.Everyone(Role::kUpdate);
    const at::Tensor x = at::ones({4});
    std::vector<Work> works;
    {
      Communicator::Group together(c);
      for (int64_t root = 0; root < 2; ++root) {
        works.push_back(c.Broadcast(x, root, {"layers.3", "gpu", ""}));
      }
    }
    for (Work& w : works) {
      try {
        w.Wait();
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        ExpectParts(e.what(), {"broadcast failed", "unit 'layers.3'", "role update", "16 bytes",
                               "NCCL communicator was aborted"});
      }
    }
  });
}

TEST(C10dBackend, WhatFailsOnTheDeviceIsRaisedByWhoComesNext) {
  testing::NcclRecorder recorder;
  recorder.failure = [](const testing::NcclCall& call) {
    return call.op == "allreduce" ? "watchdog: timed out" : "";
  };
  RunRecorded(recorder, 2, [&](World& world) {
    Communicator& c = world.Everyone(Role::kReduce);
    const at::Tensor x = at::ones({4}), y = at::ones({8});
    c.AllReduce(x, ReduceOp::kSum, {"layers.3", "gpu", ""}).Wait();  // the device has yet to run it
    try {
      c.AllGather(y, x).Wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      ExpectParts(e.what(), {"all_reduce failed", "layers.3", "role reduce", "[0, 1]", "sequence 0",
                             "16 bytes", "elapsed", "watchdog: timed out"});
    }
    c.AllReduce(x, ReduceOp::kSum, {"layers.4", "gpu", ""}).Wait();
    EXPECT_THROW(world.CheckCompleted(), Error);
    world.CheckCompleted();  // told once
  });
}

}  // namespace
}  // namespace lins
