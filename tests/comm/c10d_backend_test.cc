// The transport over any c10d::Backend, with Gloo's own collectives in the place of NCCL's.
#include "comm/c10d_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/trace.h"
#include "mesh/error.h"
#include "tests/comm/ranks.h"
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

}  // namespace
}  // namespace lins
