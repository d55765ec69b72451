// Passes over host memory: what is copied when, what happens on errors.
#include "runtime/host_pass.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "mesh/error.h"

namespace lins {
namespace {

constexpr int64_t kNumel = 1000;  // of a chunk, fp32

// Chunks of an array, each of which adds `k + 1` to its own.
std::vector<HostPass::Chunk> Adding(const at::Tensor& array) {
  std::vector<HostPass::Chunk> chunks;
  for (int64_t k = 0; k * kNumel < array.numel(); ++k) {
    chunks.push_back({{array.narrow(0, k * kNumel, kNumel)}, [k](const auto& on_device) {
                        on_device[0].add_(static_cast<double>(k + 1));
                      }});
  }
  return chunks;
}

class HostPassTest : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>(at::kCPU);
  HostPass pass_{pool_, GetParam()};
};

TEST_P(HostPassTest, EveryChunkComesInIsWorkedOnAndGoesBack) {
  const at::Tensor array = at::zeros({7 * kNumel});
  pass_.Reserve(HostPass::Padded(4 * kNumel));
  EXPECT_EQ(pool_->stats().live_leases, 3);
  std::vector<void*> places;
  std::vector<HostPass::Chunk> chunks = Adding(array);
  for (auto& chunk : chunks) {
    chunk.work = [&, work = chunk.work](const auto& on_device) {
      places.push_back(on_device[0].data_ptr());
      work(on_device);
    };
  }
  pass_.Run(std::move(chunks));
  for (int64_t k = 0; k < 7; ++k) {
    EXPECT_TRUE(array.narrow(0, k * kNumel, kNumel).eq(k + 1).all().item<bool>()) << k;
    EXPECT_NE(places[k], array.data_ptr<float>() + k * kNumel);  // a copy, on a CPU too
    EXPECT_EQ(places[k], places[k % 3]);
  }
  EXPECT_EQ(pass_.bytes_in(), 7 * 4 * kNumel);
  EXPECT_EQ(pass_.bytes_out(), 7 * 4 * kNumel);
  pass_.Release();
  EXPECT_EQ(pool_->stats().live_leases, 0);
}

TEST_P(HostPassTest, ArraysOfOtherTypesShareABufferAndWorkWithoutArraysKeepsItsPlace) {
  const at::Tensor bytes = at::ones({5}, at::kByte), wide = at::ones({5}, at::kDouble);
  pass_.Reserve(128);
  std::vector<int> order;
  pass_.Run({{{}, [&](const auto& none) { order.push_back(static_cast<int>(none.size())); }},
             {{bytes, wide},
              [&](const auto& on_device) {
                order.push_back(static_cast<int>(on_device.size()));
                on_device[0].mul_(2);
                on_device[1].mul_(3);
              }},
             {{}, [&](const auto&) { order.push_back(-1); }}});
  EXPECT_EQ(order, (std::vector<int>{0, 2, -1}));
  EXPECT_TRUE(bytes.eq(2).all().item<bool>());
  EXPECT_TRUE(wide.eq(3).all().item<bool>());
  pass_.Run({});
}

TEST_P(HostPassTest, WorkThatThrowsLeavesItsChunkAsItWasAndThePassUsable) {
  const at::Tensor array = at::zeros({5 * kNumel});
  pass_.Reserve(4 * kNumel);
  std::vector<HostPass::Chunk> chunks = Adding(array);
  chunks[3].work = [](const auto& on_device) {
    on_device[0].fill_(99);
    throw Error("too much");
  };
  EXPECT_THROW(pass_.Run(std::move(chunks)), Error);
  for (int64_t k = 0; k < 5; ++k) {
    EXPECT_TRUE(array.narrow(0, k * kNumel, kNumel).eq(k < 3 ? k + 1 : 0).all().item<bool>()) << k;
  }
  pass_.Run(Adding(array));
  EXPECT_TRUE(array.narrow(0, 4 * kNumel, kNumel).eq(5).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Concurrent, HostPassTest, ::testing::Bool());

TEST(HostPass, CopiesRunBesideTheWork) {
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  HostPass pass(pool, /*concurrent=*/true);
  const at::Tensor array = at::zeros({6 * kNumel});
  pass.Reserve(4 * kNumel);
  std::vector<HostPass::Chunk> chunks = Adding(array);
  int beside = 0;
  for (int64_t k = 0; k < 6; ++k) {
    // The work lasts until the next chunk is in and the one before is out.
    chunks[k].work = [&, k](const auto&) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      const int64_t in = 4 * kNumel * std::min<int64_t>(k + 2, 6), out = 4 * kNumel * k;
      while (std::chrono::steady_clock::now() < until) {
        if (pass.bytes_in() == in && pass.bytes_out() == out) {
          ++beside;
          return;
        }
        std::this_thread::yield();
      }
    };
  }
  pass.Run(std::move(chunks));
  EXPECT_EQ(beside, 6);
}

TEST(HostPass, WhereThereIsNoMemoryTheErrorSaysWhatHelps) {
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  HostPass pass(pool, true);
  try {
    pass.Reserve(int64_t{1} << 60);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("offload_chunk_bytes"), std::string::npos) << e.what();
  }
  EXPECT_EQ(pass.chunk_bytes(), 0);
  EXPECT_EQ(pool->stats().live_leases, 0);
  EXPECT_EQ(pool->stats().live_bytes, 0);
  EXPECT_EQ(pool->stats().pooled_bytes, 0);
}

}  // namespace
}  // namespace lins
