#include "comm/host_staged.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/nodes.h"
#include "comm/threads.h"

namespace lins {
namespace {

// Two ranks whose transport goes by way of copies, in host memory here.
template <typename Fn>
void OnTwoRanks(Fn fn) {
  ThreadsHub hub;
  std::vector<std::thread> threads;
  for (int64_t rank : {0, 1}) {
    threads.emplace_back([&hub, rank, fn] {
      const auto backend =
          StageThroughHost(hub.Join({0, 1}, rank, Nodes({0, 1}, 0), "test"), c10::DeviceType::CPU);
      fn(rank, *backend);
    });
  }
  for (std::thread& t : threads) t.join();
}

at::Tensor Numbers(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST(HostStaged, EveryOperationGivesWhatTheTransportGives) {
  OnTwoRanks([](int64_t rank, Backend& backend) {
    const auto own = static_cast<double>(rank);
    at::Tensor out = at::empty({3}, at::kDouble);
    backend.AllGather(out, rank == 0 ? Numbers({1}) : Numbers({2, 3}), {1, 2}, {})->Wait(10);
    EXPECT_TRUE(at::equal(out, Numbers({1, 2, 3})));

    at::Tensor part = at::empty({1}, at::kDouble);
    backend.ReduceScatter(part, Numbers({1 + own, 5 + own}), ReduceOp::kSum, {1, 1}, {})->Wait(10);
    EXPECT_TRUE(at::equal(part, Numbers({rank == 0 ? 3.0 : 11.0})));

    at::Tensor sum = Numbers({own, 1});
    backend.AllReduce(sum, ReduceOp::kSum, {})->Wait(10);
    EXPECT_TRUE(at::equal(sum, Numbers({1, 2})));

    at::Tensor mixed = at::empty({2}, at::kDouble);
    backend.AllToAll(mixed, Numbers({10 * own, 10 * own + 1}), {1, 1}, {1, 1}, {})->Wait(10);
    EXPECT_TRUE(at::equal(mixed, Numbers({own, 10 + own})));

    at::Tensor first = Numbers({7 + own});
    backend.Broadcast(first, 1, {})->Wait(10);
    EXPECT_TRUE(at::equal(first, Numbers({8})));
    backend.Barrier({})->Wait(10);
  });
}

TEST(HostStaged, TheCallersTensorsChangeWhenItWaitsAndNotBefore) {
  OnTwoRanks([](int64_t rank, Backend& backend) {
    at::Tensor x = Numbers({static_cast<double>(rank + 1)});
    const auto pending = backend.AllReduce(x, ReduceOp::kSum, {});
    EXPECT_EQ(x.item<double>(), rank + 1);
    pending->Wait(10);
    EXPECT_EQ(x.item<double>(), 3);
  });
}

}  // namespace
}  // namespace lins
