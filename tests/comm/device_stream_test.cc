// Streams of a device, on a simulated one: what is in order and what is not.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "comm/lanes.h"
#include "comm/stream.h"
#include "comm/stream_memory.h"
#include "tests/comm/simulated_device.h"

namespace lins {
namespace {

const c10::Device kHost(c10::kCPU);

class DeviceStreamTest : public ::testing::Test {
 protected:
  testing::SimulatedDevice device_;
  const c10::Device queue_ = QueueOf(kHost);
  Stream reduce_{/*concurrent=*/true, queue_, "reduce"};
  const c10::Stream own_ = CurrentStream(queue_);  // this thread belongs to the device from here on
  at::Tensor x_ = at::zeros({4});

  void ExpectOne(const std::string& part) const {
    EXPECT_EQ(device_.problems().size(), 1u) << device_.Text();
    EXPECT_NE(device_.Text().find(part), std::string::npos) << device_.Text();
  }
  Event Reduce(Stream::After after = Stream::After::kCaller) {
    return reduce_.Run([this] { NoteWrite(x_, "sum", "u"); }, after);
  }
};

TEST_F(DeviceStreamTest, ATaskComesAfterItsCallerAndBeforeWhoWaits) {
  NoteWrite(x_, "backward", "u");
  const Event done = Reduce();
  done.Wait();
  NoteRead(x_, "step", "u");
  EXPECT_EQ(device_.Text(), "");
}

TEST_F(DeviceStreamTest, WhoDoesNotWaitIsReported) {
  Reduce();
  NoteRead(x_, "step", "u");
  ExpectOne(
      "read by 'step' of unit 'u' on stream compute does not wait for write by "
      "'sum' of unit 'u' on stream reduce");
}

TEST_F(DeviceStreamTest, ATaskAfterNothingDoesNotWaitForItsCaller) {
  Reduce().Wait();  // for the memory
  NoteRead(x_, "forward", "u");
  Reduce(Stream::After::kNothing);
  ExpectOne("does not wait for read by 'forward'");
}

TEST_F(DeviceStreamTest, ThePlaceOfAnEventIsWhereItWasRecorded) {
  const Event before = Event::Here(queue_);
  NoteWrite(x_, "backward", "u");
  reduce_.Run(
      [&] {
        before.Wait();
        NoteRead(x_, "sum", "u");
      },
      Stream::After::kNothing);
  ExpectOne("does not wait for write by 'backward'");
}

TEST_F(DeviceStreamTest, AHostThatWaitsPutsAllStreamsInOrder) {
  Reduce().Synchronize();
  Stream other(true, queue_, "other");
  other.Run([&] { NoteWrite(x_, "other", "u"); }, Stream::After::kNothing);
  other.Drain();
  NoteRead(x_, "step", "u");
  EXPECT_EQ(device_.Text(), "");
}

TEST_F(DeviceStreamTest, TasksRunAtOnceOnTheirStream) {
  bool ran = false;
  reduce_.Run([&] {
    ran = true;
    EXPECT_NE(CurrentStream(queue_), own_);
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(CurrentStream(queue_), own_);
  Stream here(/*concurrent=*/false, queue_);
  here.Run([&] { EXPECT_EQ(CurrentStream(queue_), own_); }).Wait();
}

TEST_F(DeviceStreamTest, AFailureSkipsWhatFollowsUntilReset) {
  int ran = 0;
  const Event bad = reduce_.Run([] { throw std::runtime_error("broken"); });
  const Event next = reduce_.Run([&] { ++ran; });
  EXPECT_THROW(bad.Wait(), std::runtime_error);
  EXPECT_THROW(next.Wait(), std::runtime_error);
  EXPECT_EQ(CurrentStream(queue_), own_);
  reduce_.Reset();
  reduce_.Run([&] { ++ran; }).Wait();
  EXPECT_EQ(ran, 1);
}

TEST_F(DeviceStreamTest, StagesOfLanesFollowOneAnother) {
  Lanes lanes(true, queue_, "reduce");
  const auto use = [this](const char* what) { return [this, what] { NoteWrite(x_, what, "u"); }; };
  lanes.Run({{{0, 1}, use("scatter")}, {{0, 2}, use("sum")}, {{}, use("divide")}}).back().Wait();
  NoteRead(x_, "step", "u");
  EXPECT_EQ(device_.Text(), "");
  lanes.Run({{{0, 1}, use("scatter")}});
  lanes.Run({{{0, 2}, use("sum")}});  // of another unit: beside it
  EXPECT_NE(device_.Text(), "");
}

TEST_F(DeviceStreamTest, MemoryThatIsFreedTooEarlyIsReported) {
  at::Tensor made;
  reduce_.Run([&] { made = at::zeros({8}); }).Wait();
  NoteRead(made, "step", "u");
  made.reset();  // by its stream, which may use it again, while this one reads it
  ExpectOne("memory of stream reduce is freed");
}

TEST_F(DeviceStreamTest, StreamMemoryGoesFromStreamToStream) {
  StreamMemory memory(kHost);
  for (int i = 0; i < 3; ++i) {
    StreamMemory::Block block;
    reduce_
        .Run([&] {
          block = memory.Allocate(8, at::TensorOptions());
          block.last.Wait();
          NoteWrite(block.tensor, "sum", "u");
        })
        .Wait();
    NoteRead(block.tensor, "step", "u");
    block.last = Event::Here(queue_);
    memory.Free(std::move(block));
  }
  EXPECT_EQ(device_.Text(), "");
  StreamMemory::Block block = memory.Allocate(8, at::TensorOptions());
  NoteRead(block.tensor, "step", "u");  // without a wait for who had the memory before
  ExpectOne("does not wait for write by 'allocation'");
  memory.Free(std::move(block));
  EXPECT_EQ(device_.problems().size(), 2u);  // and freed without an event
}

}  // namespace
}  // namespace lins
