#include "comm/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace lins {
namespace {

class StreamTest : public ::testing::TestWithParam<bool> {};

TEST_P(StreamTest, TasksRunInOrder) {
  Stream stream(GetParam());
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream.Run([&order, i] { order.push_back(i); });
  stream.Drain();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST_P(StreamTest, AFailureSkipsWhatFollowsUntilReset) {
  Stream stream(GetParam());
  std::atomic<int> ran = 0;
  const Event bad = stream.Run([] { throw std::runtime_error("broken"); });
  const Event next = stream.Run([&] { ++ran; });
  EXPECT_THROW(bad.Wait(), std::runtime_error);
  EXPECT_THROW(bad.Wait(), std::runtime_error);
  EXPECT_THROW(next.Wait(), std::runtime_error);
  EXPECT_EQ(ran, 0);
  stream.Reset();
  stream.Run([&] { ++ran; }).Wait();
  EXPECT_EQ(ran, 1);
}

TEST_P(StreamTest, TheDestructorRunsWhatIsQueued) {
  std::atomic<int> ran = 0;
  {
    Stream stream(GetParam());
    for (int i = 0; i < 10; ++i) stream.Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 10);
}

TEST_P(StreamTest, ATaskIsReleasedBeforeItsEvent) {
  Stream stream(GetParam());
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  stream.Run([held = std::move(held)] {}).Wait();
  EXPECT_TRUE(seen.expired());
}

INSTANTIATE_TEST_SUITE_P(Both, StreamTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Concurrent" : "InPlace"; });

TEST(Event, WithoutATaskIsDone) {
  Event event;
  EXPECT_TRUE(event.Done());
  event.Wait();
}

}  // namespace
}  // namespace lins
