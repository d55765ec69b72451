// Groups over several nodes: values, order of summation, and the bytes that cross, exactly.
#include "comm/by_node.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"
#include "tests/comm/ranks.h"
#include "tests/comm/sweep.h"

namespace lins {
namespace {

using testing::RunGloo;
using testing::RunWorlds;

struct Case {
  int64_t nodes, per_node;
  bool chain = false;  // the group lists the local index before the node

  int64_t size() const { return nodes * per_node; }
  std::vector<int64_t> Group() const {
    std::vector<int64_t> ranks(size());
    for (int64_t i = 0; i < size(); ++i) {
      ranks[i] = chain ? i % nodes * per_node + i / nodes : i;
    }
    return ranks;
  }
};

// Runs fn on the communicator of all ranks, in the group's order, over Gloo or between threads.
void OnGroup(const Case& c, bool gloo, const std::function<void(Communicator&)>& fn) {
  const auto body = [&](World& world) {
    world.SetNodeSize(c.per_node);
    fn(world.Get(c.Group(), Role::kReduce));
  };
  gloo ? RunGloo(c.size(), body) : RunWorlds(c.size(), body);
}

class ByNode : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Groups, ByNode,
                         ::testing::Values(Case{1, 2}, Case{1, 3}, Case{2, 1}, Case{3, 1},
                                           Case{2, 2}, Case{2, 2, true}, Case{2, 3}, Case{3, 2},
                                           Case{3, 2, true}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.nodes, "x", info.param.per_node,
                                               info.param.chain ? "chain" : "");
                         });

TEST_P(ByNode, EveryCollectiveMatchesItsFormula) {
  const Case& group = GetParam();
  OnGroup(group, /*gloo=*/true, [&](Communicator& c) {
    for (const int64_t n : {0, 1, 7}) testing::SweepCollectives(c, n, at::kFloat);
    // Around the least message that goes by nodes, then around the borders of cuts.
    const int64_t least = kByNodeBytes / group.size() / 4, cut = kByNodeCutBytes / 4;
    for (const int64_t n : {least - 1, least + 1, cut, 2 * cut + 3}) {
      testing::SweepCollectives(c, n, at::kFloat);
    }
    testing::SweepAllReduce(c, 9 * cut * group.size() + 3, at::kFloat);  // cuts larger than that
    testing::SweepBroadcast(c, kByNodeBroadcastBytes / 4 - 1, at::kFloat);
    testing::SweepBroadcast(c, kByNodeBroadcastBytes / 4 + 1, at::kFloat);
    testing::SweepCollectives(c, 100003, at::kBFloat16);
    testing::SweepCollectives(c, 30001, at::kLong);
  });
}

// Values for which the order of additions and roundings matters.
at::Tensor Rough(int64_t rank, int64_t n, at::ScalarType dtype) {
  const at::Tensor i = at::arange(n, at::kLong) + 1000003 * rank + 1;
  const at::Tensor bits = i * 6364136223846793005;  // wraps around
  return (bits.to(at::kDouble) * at::pow(2.0, (i % 11).to(at::kDouble) - 73)).to(dtype);
}

at::Tensor Combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  return op == ReduceOp::kProduct ? a * b : a + b;
}

// In rank order within each node, then in node order.
at::Tensor Expected(const Case& c, const std::vector<at::Tensor>& of_rank, ReduceOp op) {
  const at::ScalarType dtype = of_rank[0].scalar_type();
  const at::ScalarType wide = c10::elementSize(dtype) == 2 ? at::kFloat : dtype;
  at::Tensor total;
  for (int64_t node = 0; node < c.nodes; ++node) {
    at::Tensor sum;
    for (int64_t local = 0; local < c.per_node; ++local) {
      const at::Tensor next = of_rank[node * c.per_node + local].to(wide);
      sum = local == 0 ? next : Combine(sum, next, op);
    }
    if (op != ReduceOp::kAvg) sum = sum.to(dtype).to(wide);
    total = node == 0 ? sum : Combine(total, sum, op);
  }
  if (op == ReduceOp::kAvg) total = total / static_cast<double>(c.size());
  return total.to(dtype);
}

TEST_P(ByNode, BothTransportsAddUpInTheDocumentedOrder) {
  const Case& group = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t part : {50, 70001}) {  // direct, by nodes
      std::vector<at::Tensor> inputs, wants;
      for (int64_t r = 0; r < group.size(); ++r) {
        inputs.push_back(Rough(r, part * group.size(), dtype));
      }
      constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct};
      for (const ReduceOp op : kOps) wants.push_back(Expected(group, inputs, op));
      for (const bool gloo : {true, false}) {
        OnGroup(group, gloo, [&](Communicator& c) {
          for (size_t i = 0; i < wants.size(); ++i) {
            const at::Tensor x = inputs[c.ranks()[c.index()]].clone();
            const at::Tensor own = at::empty({part}, dtype);
            c.ReduceScatter(own, x, kOps[i]).Wait();
            c.AllReduce(x, kOps[i]).Wait();
            const std::string what = absl::StrCat(ReduceOpName(kOps[i]), " of ", x.numel());
            if (!at::equal(x, wants[i])) throw Error(absl::StrCat("all_reduce, ", what));
            if (!at::equal(own, wants[i].narrow(0, c.index() * part, part))) {
              throw Error(absl::StrCat("reduce_scatter, ", what));
            }
          }
        });
      }
    }
  }
}

// What this rank sends to each rank while fn runs.
std::vector<int64_t> Sent(Communicator& c, const std::function<Work()>& fn) {
  std::vector<int64_t> before = c.SentBytes();
  fn().Wait();
  std::vector<int64_t> sent = c.SentBytes();
  for (size_t i = 0; i < sent.size(); ++i) sent[i] -= before[i];
  return sent;
}

void ExpectSent(const std::vector<int64_t>& got, const std::vector<int64_t>& want,
                const char* what) {
  if (got == want) return;
  throw Error(absl::StrCat(what, " sent ", absl::StrJoin(got, ","), " instead of ",
                           absl::StrJoin(want, ",")));
}

TEST_P(ByNode, NothingCrossesMoreOftenThanNeeded) {
  const Case& group = GetParam();
  if (group.nodes == 1 || group.per_node == 1) return;  // go directly
  OnGroup(group, /*gloo=*/true, [&](Communicator& c) {
    const int64_t k = c.size(), rank = group.Group()[c.index()];
    const int64_t node = rank / group.per_node, local = rank % group.per_node;
    Counts counts(k);  // uneven, one of them 0
    for (int64_t i = 0; i < k; ++i) counts[i] = i == 1 ? 0 : 60000 + 1000 * i;
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    std::vector<int64_t> columns(group.per_node);  // bytes of the parts of equal local index
    for (int64_t i = 0; i < k; ++i) columns[c.ranks()[i] % group.per_node] += 4 * counts[i];
    // fn(node, local) is what goes to that rank.
    const auto want = [&](auto fn) {
      std::vector<int64_t> bytes(k);
      for (int64_t i = 0; i < k; ++i) {
        const int64_t to = c.ranks()[i];
        if (to != rank) bytes[i] = fn(to / group.per_node, to % group.per_node, 4 * counts[i]);
      }
      return bytes;
    };
    const int64_t own = 4 * counts[c.index()];
    const at::Tensor all = at::ones({total}), part = at::ones({counts[c.index()]});
    ExpectSent(Sent(c, [&] { return c.AllGather(all, part, counts); }),
               want([&](int64_t m, int64_t l, int64_t) {
                 return m == node ? columns[local] : l == local ? own : 0;
               }),
               "all_gather");
    ExpectSent(Sent(c, [&] { return c.ReduceScatter(part, all, ReduceOp::kSum, counts); }),
               want([&](int64_t m, int64_t l, int64_t theirs) {
                 return m == node ? columns[l] : l == local ? theirs : 0;
               }),
               "reduce_scatter");
    const int64_t n = (1 << 17) * k;  // equal chunks: twice (M-1)/M * n leave each node
    const at::Tensor whole = at::ones({n});
    ExpectSent(Sent(c, [&] { return c.AllReduce(whole, ReduceOp::kSum); }),
               want([&](int64_t m, int64_t l, int64_t) {
                 const int64_t chunk = 4 * n / k;
                 return m == node ? 2 * group.nodes * chunk : l == local ? 2 * chunk : 0;
               }),
               "all_reduce");
    for (int64_t root = 0; root < k; ++root) {
      const int64_t first = c.ranks()[root] / group.per_node;
      const int64_t relay = c.ranks()[root] % group.per_node;
      ExpectSent(Sent(c, [&] { return c.Broadcast(whole, root); }),
                 want([&](int64_t m, int64_t l, int64_t) -> int64_t {
                   if (local != relay) return 0;
                   const bool next = m == (node + 1) % group.nodes && m != first && l == relay;
                   return m == node || next ? 4 * n : 0;
                 }),
                 "broadcast");
    }
    // Small messages go straight to everybody.
    ExpectSent(Sent(c, [&] { return c.AllGather(at::ones({k}), at::ones({1})); }),
               want([](int64_t, int64_t, int64_t) { return 4; }), "a small all_gather");
  });
}

TEST(ByNodeGroups, ThoseMadeBeforeTheNodesWereKnownKeepTheirWay) {
  RunGloo(4, [](World& world) {
    const std::vector<int64_t> ranks = {0, 2, 1, 3};
    Communicator& before = world.Get(ranks, Role::kGather);
    world.SetNodeSize(2);
    Communicator& after = world.Get(ranks, Role::kReduce);
    const int64_t n = 400000;
    const at::Tensor a = Rough(world.rank(), n, at::kFloat), b = a.clone();
    Work first = after.AllReduce(b, ReduceOp::kSum);
    before.AllReduce(a, ReduceOp::kSum).Wait();
    first.Wait();
    at::Tensor x[4];
    for (int64_t r = 0; r < 4; ++r) x[r] = Rough(r, n, at::kFloat);
    if (!at::equal(a, x[0] + x[2] + x[1] + x[3])) throw Error("before");
    if (!at::equal(b, (x[0] + x[1]) + (x[2] + x[3]))) throw Error("after");
    if (at::equal(a, b)) throw Error("the order does not matter for these values");
    try {
      world.SetNodeSize(-1);
      throw Error("accepted");
    } catch (const Error& e) {
      if (std::string(e.what()).find("ranks per node, -1") == std::string::npos) throw;
    }
  });
}

TEST(ByNodeGroups, ManyOperationsInFlight) {
  RunGloo(4, [](World& world) {
    world.SetNodeSize(2);
    const int64_t r = world.rank(), n = 400000;
    Communicator& reduce = world.Get({0, 1, 2, 3}, Role::kReduce);
    Communicator& gather = world.Get({0, 1, 2, 3}, Role::kGather);
    std::vector<at::Tensor> sums, outs, texts;
    std::vector<Work> works;
    for (int64_t i = 0; i < 6; ++i) {
      sums.push_back(at::full({n + i}, r + i, at::kFloat));
      outs.push_back(at::empty({4 * n}));
      texts.push_back(at::full({n}, r == i % 4 ? i : -1, at::kFloat));
      works.push_back(reduce.AllReduce(sums[i], ReduceOp::kSum));
      works.push_back(gather.AllGather(outs[i], at::full({n}, r + i, at::kFloat)));
      works.push_back(gather.Broadcast(texts[i], i % 4));
      reduce.Barrier();  // dropped
    }
    std::swap(works[1], works[14]);
    for (Work& work : works) work.Wait();
    for (int64_t i = 0; i < 6; ++i) {
      if (!(sums[i] == 6 + 4 * i).all().item<bool>()) throw Error("all_reduce");
      for (int64_t s = 0; s < 4; ++s) {
        if (!(outs[i].narrow(0, s * n, n) == s + i).all().item<bool>()) throw Error("all_gather");
      }
      if (!(texts[i] == i).all().item<bool>()) throw Error("broadcast");
    }
  });
}

TEST(ByNodeGroups, RelayingGoesOnWithoutWait) {
  RunGloo(4, [](World& world) {
    world.SetNodeSize(2);
    Communicator& c = world.Get({0, 1, 2, 3}, Role::kGather);
    for (int i = 0; i < 5; ++i) {
      const at::Tensor x = at::full({500000}, world.rank() == 0 ? 5.0f : 0.0f);
      Work work = c.Broadcast(x, 0);  // by way of rank 2
      if (world.rank() != 3) continue;
      work.Wait();
      if (x[499999].item<float>() != 5) throw Error("broadcast");
    }
    c.Barrier().Wait();
  });
}

TEST(ByNodeGroups, ARankThatIsMissingIsNamed) {
  std::vector<std::string> messages(4);
  RunGloo(
      4,
      [&](World& world) {
        world.SetNodeSize(2);
        Communicator& c = world.Get({0, 1, 2, 3}, Role::kReduce);
        c.Barrier().Wait();
        if (world.rank() == 3) {
          std::this_thread::sleep_for(std::chrono::milliseconds(900));
          return;
        }
        try {
          c.AllReduce(at::ones({200000}), ReduceOp::kSum, {.unit = "head"}).Wait();
        } catch (const Error& e) {
          messages[world.rank()] = e.what();
        }
      },
      0.4);
  for (int r = 0; r < 3; ++r) {
    EXPECT_NE(messages[r].find(absl::StrCat("all_reduce failed on rank ", r, " for unit 'head'")),
              std::string::npos)
        << messages[r];
  }
  // Rank 1 exchanges with it across, rank 2 within the node.
  for (int r : {1, 2}) {
    EXPECT_NE(messages[r].find("rank 3"), std::string::npos) << messages[r];
  }
}

TEST(ByNodeGroups, OneOperationIsOneRecord) {
  RunGloo(4, [](World& world) {
    world.SetNodeSize(2);
    Communicator& c = world.Get({0, 1, 2, 3}, Role::kReduce);
    const int64_t trace = world.context().StartTrace(), n = 400000;
    c.AllReduce(at::ones({n}), ReduceOp::kSum).Wait();
    c.AllGather(at::ones({n}), at::ones({n / 4})).Wait();
    const std::vector<TraceRecord> records = world.context().Trace(trace);
    world.context().StopTrace(trace);
    if (records.size() != 2) throw Error("records");
    if (records[0].recv_bytes != 6 * n || records[1].recv_bytes != 3 * n) throw Error("bytes");
  });
}

}  // namespace
}  // namespace lins
