#include "runtime/buffer_pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/order_checker.h"
#include "tests/comm/simulated_device.h"

namespace lins {
namespace {

TEST(BufferPool, WhatIsGivenBackIsLentAgain) {
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  auto a = pool->Acquire(64);
  void* const first = a->data();
  auto b = pool->Acquire(64);
  EXPECT_NE(b->data(), first);
  EXPECT_EQ(pool->stats().live_leases, 2);
  EXPECT_EQ(pool->stats().live_bytes, 128);
  a.reset();
  EXPECT_EQ(pool->stats().live_bytes, 64);
  EXPECT_EQ(pool->Acquire(64)->data(), first);
  for (int i = 0; i < 10; ++i) pool->Acquire(64);
  EXPECT_EQ(pool->stats().pooled_bytes, 128);
  EXPECT_EQ(pool->stats().peak_leases, 2);
  EXPECT_EQ(pool->stats().peak_bytes, 128);
}

TEST(BufferPool, ALeaseIsSeenAsATensor) {
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  const auto lease = pool->Acquire(40);
  const at::Tensor x = lease->As(at::kFloat, 9);
  EXPECT_EQ(x.numel(), 9);
  EXPECT_EQ(x.data_ptr(), lease->data());
  EXPECT_EQ(lease->As(at::kDouble, 5).scalar_type(), at::kDouble);
  EXPECT_EQ(pool->Acquire(0)->As(at::kFloat, 0).numel(), 0);
}

TEST(BufferPool, OnADeviceTheNextTakerWaitsForTheLastUser) {
  testing::SimulatedDevice device;
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  Stream gather(/*concurrent=*/true, pool->queue(), "gather");
  // Taken by the host ahead of the streams, which use it one after another.
  const auto use = [&](bool begins) {
    auto lease = pool->Acquire(64);
    gather
        .Run(
            [&] {
              if (begins) lease->Begin();
              NoteWrite(lease->As(at::kByte, 64), "gather", "u");
            },
            Stream::After::kNothing)
        .Wait();
    NoteRead(lease->As(at::kByte, 64), "compute", "u");
  };
  for (int i = 0; i < 3; ++i) use(true);
  EXPECT_EQ(device.Text(), "");
  EXPECT_EQ(pool->stats().pooled_bytes, 64);
  use(false);
  EXPECT_NE(device.Text().find("does not wait for read by 'compute'"), std::string::npos)
      << device.Text();
}

TEST(BufferPool, ALeaseKeepsItsPool) {
  auto pool = std::make_shared<BufferPool>(at::kCPU);
  const auto lease = pool->Acquire(8);
  pool.reset();
  lease->As(at::kByte, 8).fill_(1);
}

}  // namespace
}  // namespace lins
