#include "comm/gloo.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "comm/by_node.h"
#include "comm/direct.h"
#include "comm/exchange.h"
#include "comm/posted.h"
#include "comm/progress.h"
#include "mesh/fnv.h"

namespace lins {
namespace {

// Up to this many bytes an all-reduce gathers all contributions and adds them up on every rank, one
// exchange instead of two, and reductions wait for their caller instead of a thread of their own.
constexpr int64_t kSmall = 32 * 1024;

at::Tensor Flat(const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return tensor.view(-1);
}

int64_t Bytes(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// Chunks of ceil(n/k).
Counts EvenChunks(int64_t n, int64_t k) {
  const int64_t chunk = (n + k - 1) / k;
  Counts counts(k);
  for (int64_t r = 0; r < k; ++r) counts[r] = std::clamp<int64_t>(n - r * chunk, 0, chunk);
  return counts;
}

class GlooBackend : public Backend {
 public:
  GlooBackend(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int64_t index,
              Nodes nodes, double timeout)
      : group_(std::move(group)),
        ranks_(std::move(ranks)),
        index_(index),
        nodes_(std::move(nodes)),
        sent_(std::make_shared<SentCounters>(ranks_.size())),
        progress_(std::make_shared<ProgressThread>(timeout)) {}

  std::unique_ptr<Pending> AllGather(const at::Tensor& out, const at::Tensor& in,
                                     const Counts& counts, const OpInfo& info) override {
    auto exchange = NewExchange(kAllGather, info);
    if (ByNode(out)) {
      AllGatherByNode(*exchange, index_, nodes_, Flat(out), Flat(in), counts);
    } else {
      DirectAllGather(*exchange, index_, Flat(out), Flat(in), counts);
    }
    return Start(std::move(exchange), out);
  }

  std::unique_ptr<Pending> ReduceScatter(const at::Tensor& out, const at::Tensor& in, ReduceOp op,
                                         const Counts& counts, const OpInfo& info) override {
    auto exchange = NewExchange(kReduceScatter + static_cast<int>(op), info);
    Reduce(*exchange, Flat(out), Flat(in), op, counts, /*all=*/false);
    return Start(std::move(exchange), in);
  }

  std::unique_ptr<Pending> AllReduce(const at::Tensor& inout, ReduceOp op,
                                     const OpInfo& info) override {
    const at::Tensor flat = Flat(inout);
    auto exchange = NewExchange(kAllReduce + static_cast<int>(op), info);
    if (Bytes(flat) <= kSmall) {
      DirectSmallAllReduce(*exchange, index_, nodes_, flat, op);
    } else {
      Reduce(*exchange, flat, flat, op, EvenChunks(flat.numel(), size()), /*all=*/true);
    }
    return Start(std::move(exchange), inout);
  }

  std::unique_ptr<Pending> AllToAll(const at::Tensor& out, const at::Tensor& in,
                                    const Counts& out_counts, const Counts& in_counts,
                                    const OpInfo& info) override {
    auto exchange = NewExchange(kAllToAll, info);
    DirectAllToAll(*exchange, index_, Flat(out), Flat(in), out_counts, in_counts);
    return Start(std::move(exchange), out);
  }

  std::unique_ptr<Pending> Broadcast(const at::Tensor& inout, int64_t root,
                                     const OpInfo& info) override {
    auto exchange = NewExchange(kBroadcast, info);
    if (ByNode(inout, kByNodeBroadcastBytes)) {
      BroadcastByNode(*exchange, index_, nodes_, Flat(inout), root);
    } else {
      DirectBroadcast(*exchange, index_, size(), Flat(inout), root);
    }
    return Start(std::move(exchange), inout);
  }

  std::unique_ptr<Pending> Barrier(const OpInfo& info) override {
    const at::Tensor tokens = at::zeros({size()}, at::kByte);
    auto exchange = NewExchange(kBarrier, info);
    DirectAllGather(*exchange, index_, tokens, tokens.narrow(0, index_, 1), Counts(size(), 1));
    return Start(std::move(exchange), tokens);
  }

  std::vector<int64_t> SentBytes() const override { return {sent_->begin(), sent_->end()}; }

 private:
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }

  // Whether an operation on a message of which `whole` is all goes by nodes.
  bool ByNode(const at::Tensor& whole, int64_t least = kByNodeBytes) const {
    return nodes_.count() > 1 && Bytes(whole) >= least;
  }

  void Reduce(Exchange& exchange, const at::Tensor& out, const at::Tensor& in, ReduceOp op,
              const Counts& counts, bool all) const {
    const bool narrow_average = op == ReduceOp::kAvg && in.element_size() <= 2;
    if (ByNode(in) && !narrow_average) {
      ReduceByNode(exchange, index_, nodes_, out, in, op, counts, all);
    } else {
      DirectReduce(exchange, index_, nodes_, out, in, op, counts, all);
    }
  }

  enum Kind { kAllGather, kAllToAll, kBroadcast, kBarrier, kAllReduce, kReduceScatter = 16 };

  // kind: what all ranks must call alike, and for the same unit. For reductions the operation is
  // added.
  std::shared_ptr<Exchange> NewExchange(int kind, const OpInfo& info) {
    tag_ = (tag_ + Wire::kPhases) % Wire::kTags;
    return std::make_shared<Exchange>(group_, ranks_, tag_, kind + UnitKind(info.unit), sent_,
                                      pool_);
  }

  static int UnitKind(const std::string& unit) { return static_cast<int>(Fnv32(unit) % 8191) * 32; }

  // Large messages that something follows do not depend on the caller's waiting.
  std::unique_ptr<Pending> Start(std::shared_ptr<Exchange> exchange, const at::Tensor& whole) {
    const bool background = exchange->has_steps() && Bytes(whole) > kSmall;
    return MakePending(std::move(exchange), progress_, background);
  }

  c10::intrusive_ptr<c10d::Backend> group_;
  const std::vector<int64_t> ranks_;
  const int64_t index_;
  const Nodes nodes_;
  int tag_ = 0;
  const std::shared_ptr<SentCounters> sent_;
  std::shared_ptr<StagingPool> pool_ = std::make_shared<StagingPool>();
  std::shared_ptr<ProgressThread> progress_;  // released first: its tasks use the group
};

}  // namespace

struct GlooFactory::State {
  c10::intrusive_ptr<c10d::Store> store;
  double timeout;
  c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options;  // made by the first group
};

GlooFactory::GlooFactory(c10::intrusive_ptr<c10d::Store> store, double timeout_seconds)
    : state_(new State{std::move(store), timeout_seconds, {}}) {}

GlooFactory::~GlooFactory() = default;

std::unique_ptr<Backend> GlooFactory::Connect(const std::vector<int64_t>& ranks, int64_t index,
                                              const Nodes& nodes, const std::string& key) {
  using Group = c10d::ProcessGroupGloo;
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(state_->timeout * 1000));
  if (!state_->options) state_->options = Group::Options::create_default(timeout);
  auto options = Group::Options::create(timeout);
  options->devices = state_->options->devices;  // one thread moves the bytes of all groups
  options->threads = 1;                         // only Gloo's own collectives use them
  auto store = c10::make_intrusive<c10d::PrefixStore>(key, state_->store);
  auto group = c10::make_intrusive<Group>(store, static_cast<int>(index),
                                          static_cast<int>(ranks.size()), std::move(options));
  return Posted(
      std::make_unique<GlooBackend>(std::move(group), ranks, index, nodes, state_->timeout));
}

}  // namespace lins
