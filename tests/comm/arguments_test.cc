// Arguments that a communicator refuses, with messages that carry the values; groups of one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "comm/trace.h"
#include "comm/world.h"
#include "mesh/error.h"

namespace lins {
namespace {

void ExpectError(const std::function<void()>& fn, const std::string& part) {
  try {
    fn();
    ADD_FAILURE() << "no error with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::kValue);
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

class Arguments : public ::testing::Test {
 protected:
  std::vector<std::shared_ptr<World>> worlds_ = World::Threads(3);
  Communicator& c_ = worlds_[1]->Get({0, 1, 2}, Role::kGather);
};

TEST_F(Arguments, SizesMustFit) {
  ExpectError(
      [&] { c_.AllGather(at::zeros({7}), at::zeros({2})); },
      "all_gather (role gather, group [0, 1, 2]): out has 7 elements, which do not divide by 3");
  ExpectError([&] { c_.AllGather(at::zeros({6}), at::zeros({3})); },
              "in has 3 elements, but this rank's part of out's 6 is 2");
  ExpectError([&] { c_.ReduceScatter(at::zeros({1}), at::zeros({6}), ReduceOp::kSum); },
              "out has 1 elements, but this rank's part of in's 6 is 2");
}

TEST_F(Arguments, CountsMustFit) {
  for (const Counts& counts : {Counts{3, 3}, Counts{3, 4, -1}, Counts{2, 2, 3}}) {
    ExpectError([&] { c_.AllGather(at::zeros({6}), at::zeros({2}), counts); },
                "of out must be 3 numbers >= 0 that add up to its 6 elements");
  }
  ExpectError(
      [&] {
        c_.AllToAll(at::zeros({3}), at::zeros({3}), {1, 2, 0}, {1, 1, 1});
      },
      "sends itself 1 elements but receives 2");
}

TEST_F(Arguments, TensorsMustBeContiguousDefinedAndOfOneType) {
  ExpectError(
      [&] {
        c_.AllReduce(at::zeros({4, 2}).t(), ReduceOp::kSum);
      },
      "inout of shape [2, 4] and strides [1, 2] is not contiguous");
  ExpectError([&] { c_.AllReduce(at::Tensor(), ReduceOp::kSum); }, "inout is undefined");
  ExpectError([&] { c_.AllGather(at::zeros({3}), at::zeros({1}, at::kHalf)); },
              "out is Float but in is Half");
  ExpectError([&] { c_.Broadcast(at::empty({3}, at::kMeta), 0); },
              "inout is on meta; this world needs tensors on cpu");
}

TEST_F(Arguments, OverlapIsLegalOnlyInPlace) {
  const at::Tensor x = at::zeros({6});
  ExpectError([&] { c_.AllGather(x, x.narrow(0, 0, 2)); }, "own part");
  ExpectError([&] { c_.ReduceScatter(x.narrow(0, 3, 2), x, ReduceOp::kSum); }, "own part");
  ExpectError([&] { c_.AllToAll(x, x); }, "out overlaps in");
}

TEST_F(Arguments, ReductionsMustSuitTheType) {
  ExpectError([&] { c_.AllReduce(at::zeros({4}, at::kLong), ReduceOp::kAvg); },
              "cannot reduce Long with avg");
  ExpectError([&] { c_.AllReduce(at::zeros({4}), ReduceOp::kBxor); },
              "cannot reduce Float with bxor");
  ExpectError([&] { c_.AllReduce(at::zeros({4}, at::kComplexFloat), ReduceOp::kMax); }, "no order");
}

TEST_F(Arguments, RootAndGroupsMustExist) {
  ExpectError([&] { c_.Broadcast(at::zeros({1}), 3); },
              "root 3 is not an index of the group, 0 to 2");
  ExpectError(
      [&] {
        worlds_[1]->Get({0, 2}, Role::kGather);
      },
      "group [0, 2] does not contain this rank, 1");
  ExpectError([&] { worlds_[1]->Get({1, 3}, Role::kGather); }, "distinct ranks from 0 to 2");
  ExpectError([&] { worlds_[1]->Get({1, 1}, Role::kGather); }, "distinct ranks from 0 to 2");
  ExpectError([&] { worlds_[1]->Get({}, Role::kGather); }, "distinct ranks from 0 to 2");
  ExpectError([&] { World::Threads(0); }, "rank 0 of a world of 0");
  ExpectError([&] { World::Threads(2, -1); }, "time-out -1 s");
}

TEST(GroupOfOne, CopiesAndIsNotTraced) {
  const auto world = World::Single();
  Communicator& c = world->Get({0}, Role::kReduce);
  const int trace = world->context().StartTrace();
  const at::Tensor in = at::arange(6, at::kFloat).view({2, 3}), out = at::zeros({6});
  c.AllGather(out, in).Wait();
  EXPECT_TRUE(at::equal(out, in.view(-1)));
  EXPECT_NE(out.data_ptr(), in.data_ptr());
  out.zero_();
  c.ReduceScatter(out, in, ReduceOp::kAvg).Wait();
  EXPECT_TRUE(at::equal(out, in.view(-1)));
  out.zero_();
  c.AllToAll(out, in).Wait();
  EXPECT_TRUE(at::equal(out, in.view(-1)));
  c.AllReduce(out, ReduceOp::kAvg).Wait();
  c.Broadcast(out, 0).Wait();
  c.Barrier().Wait();
  EXPECT_TRUE(at::equal(out, in.view(-1)));
  EXPECT_TRUE(world->context().Trace(trace).empty());
  world->context().StopTrace(trace);
}

TEST(GroupOfOne, TakesTensorsThatNeedGradients) {
  const auto world = World::Single();
  const at::Tensor leaf = at::zeros({2}).requires_grad_(true);
  world->Get({0}, Role::kGather).AllGather(leaf, at::ones({2})).Wait();
  EXPECT_EQ(leaf[1].item<float>(), 1);
}

}  // namespace
}  // namespace lins
