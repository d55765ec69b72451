// Trace records, and what tests inject: delays and failures.
#include "comm/trace.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "mesh/error.h"
#include "tests/comm/ranks.h"
#include "tests/comm/sweep.h"

namespace lins {
namespace {

using testing::AllRanks;
using testing::RunWorlds;

std::map<std::string, TraceRecord> ByOp(const std::vector<TraceRecord>& records) {
  std::map<std::string, TraceRecord> by_op;
  for (const TraceRecord& record : records) by_op[record.op] = record;
  return by_op;
}

TEST(Trace, BytesFollowTheFormulas) {
  RunWorlds(3, [](World& world) {
    const int64_t r = world.rank(), trace = world.context().StartTrace();
    Communicator& c = world.Get({0, 1, 2}, Role::kReduce);
    const OpInfo info{.unit = "layers.0", .axes = "gpu:3"};
    const Counts counts = {4, 0, 3};
    const int64_t n = counts[r];
    c.AllGather(at::zeros({7}), at::zeros({n}), counts, info).Wait();
    c.ReduceScatter(at::zeros({n}), at::zeros({7}), ReduceOp::kSum, counts, info).Wait();
    c.AllReduce(at::zeros({7}, at::kDouble), ReduceOp::kSum, info).Wait();  // chunks 3, 3, 1
    c.AllToAll(at::zeros({6}), at::zeros({6}), {}, {}, {.op = "exchange"}).Wait();
    c.Broadcast(at::zeros({5}), 1, info).Wait();
    const std::vector<TraceRecord> records = world.context().Trace(trace);
    world.context().StopTrace(trace);
    auto op = ByOp(records);
    const auto expect = [](int64_t got, int64_t want, const char* what) {
      if (got != want) throw Error(absl::StrCat(what, ": ", got, " instead of ", want));
    };
    expect(records.size(), 5, "records");
    expect(op["all_gather"].bytes, 28, "all_gather bytes");
    expect(op["all_gather"].recv_bytes, (7 - n) * 4, "all_gather recv_bytes");
    expect(op["reduce_scatter"].bytes, 28, "reduce_scatter bytes");
    expect(op["reduce_scatter"].recv_bytes, 2 * n * 4, "reduce_scatter recv_bytes");
    const int64_t own = r == 2 ? 1 : 3;
    expect(op["all_reduce"].bytes, 56, "all_reduce bytes");
    expect(op["all_reduce"].recv_bytes, (2 * own + 7 - own) * 8, "all_reduce recv_bytes");
    expect(op["exchange"].bytes, 24, "exchange bytes");
    expect(op["exchange"].recv_bytes, 16, "exchange recv_bytes");
    expect(op["broadcast"].recv_bytes, r == 1 ? 0 : 20, "broadcast recv_bytes");
    for (size_t i = 0; i < records.size(); ++i) {
      const TraceRecord& record = records[i];
      expect(record.sequence, i, "sequence");
      expect(record.rank, r, "rank");
      if (record.role != "reduce") throw Error("role " + record.role);
      if (record.group != std::vector<int64_t>{0, 1, 2}) throw Error("group");
      if (!(record.start > 0 && record.end >= record.start)) throw Error("times");
      if (i > 0 && record.start < records[i - 1].start) throw Error("order");
      const bool plain = record.op != "exchange";
      if (record.unit != (plain ? "layers.0" : "") || record.axes != (plain ? "gpu:3" : "")) {
        throw Error("unit or axes");
      }
    }
  });
}

TEST(Trace, NestsAndStops) {
  auto context = std::make_shared<RankContext>();
  const int outer = context->StartTrace();
  context->End(context->Begin({.op = "a"}));
  const int inner = context->StartTrace();
  context->Begin({.op = "b"});
  EXPECT_EQ(context->Trace(outer).size(), 2u);
  EXPECT_EQ(context->Trace(inner).size(), 1u);
  EXPECT_EQ(context->Trace(inner)[0].end, 0);  // in flight
  context->StopTrace(outer);
  context->StopTrace(inner);
  EXPECT_EQ(context->Begin({.op = "c"}), nullptr);
}

TEST(Trace, ScopesReplaceTheContextOfOneThread) {
  const auto process = RankContext::Current();
  const auto mine = std::make_shared<RankContext>();
  {
    RankContext::Scope scope(mine);
    EXPECT_EQ(RankContext::Current(), mine);
    std::thread([&] { EXPECT_EQ(RankContext::Current(), process); }).join();
  }
  EXPECT_EQ(RankContext::Current(), process);
}

TEST(Delay, ChangesNoValueAndDoesNotHoldUpTheCaller) {
  RunWorlds(4, [](World& world) {
    Communicator& c = world.Get(AllRanks(world), Role::kReduce);
    const double seconds = world.rank() == 1 ? 0.05 : 0;
    const int id = world.context().AddDelay({.op = "all_reduce"}, seconds);
    const at::Tensor x = testing::Contribution(world.rank(), 7, at::kFloat);
    const at::Tensor y = testing::Contribution(world.rank(), 5, at::kFloat);
    const double begin = MonotonicSeconds();
    Work first = c.AllReduce(x, ReduceOp::kSum);
    Work second = c.Broadcast(y, 2);  // not delayed itself, but launched after the first
    if (MonotonicSeconds() - begin > 0.04) throw Error("the caller was held up");
    if (first.Done()) throw Error("done before its delay was over");
    second.Wait();
    first.Wait();
    if (MonotonicSeconds() - begin < 0.045) throw Error("no delay");
    if (!at::equal(y, testing::Contribution(2, 5, at::kFloat))) throw Error("broadcast");
    if (!at::equal(x, at::arange(7, at::kFloat).remainder(5) * 4 + 6)) throw Error("all_reduce");
    world.context().Remove(id);
    for (const int64_t n : {0, 1, 7}) testing::SweepCollectives(c, n, at::kFloat);
  });
}

TEST(Delay, BeyondTheTimeOutIsATimeOut) {
  const auto worlds = World::Threads(2, 0.1);
  worlds[0]->context().AddDelay({}, 30);
  Work work = worlds[0]->Get({0, 1}, Role::kGather).Barrier();
  try {
    work.Wait();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("barrier failed on rank 0"), std::string::npos)
        << e.what();
    EXPECT_EQ(e.kind(), Error::Kind::kRuntime);
  }
  worlds[0]->Shutdown();  // does not wait for the delay
}

TEST(Failure, RaisesFromWaitForMatchingOperationsOnly) {
  RunWorlds(2, [](World& world) {
    Communicator& c = world.Get({0, 1}, Role::kGather);
    const int id = world.context().AddFailure({.op = "all_gather", .unit = "b", .role = "gather"},
                                              "link down");
    const at::Tensor out = at::zeros({2}), in = at::ones({1});
    c.AllGather(out, in, {}, {.unit = "a"}).Wait();
    Work work = c.AllGather(out, in, {}, {.unit = "b"});
    std::string message;
    try {
      work.Wait();
    } catch (const Error& e) {
      message = e.what();
    }
    if (message.find("all_gather failed on rank") != 0 ||
        message.find("unit 'b'") > message.size() || message.find("link down") > message.size()) {
      throw Error("message: " + message);
    }
    world.context().Remove(id);
    c.AllGather(out, in, {}, {.unit = "b"}).Wait();
  });
}

}  // namespace
}  // namespace lins
