#include "comm/world.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/backend.h"
#include "comm/gloo.h"
#include "comm/host_staged.h"
#include "comm/nccl.h"
#include "comm/nodes.h"
#include "comm/stream.h"
#include "comm/threads.h"
#include "comm/trace.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::string List(const std::vector<int64_t>& ranks) {
  return absl::StrCat("[", absl::StrJoin(ranks, ", "), "]");
}

void CheckWorld(int64_t rank, int64_t size, double timeout) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(absl::StrCat("rank ", rank, " of a world of ", size,
                             ": must be at least 0 and less than the size"));
  }
  if (!(timeout > 0 && timeout <= 1e8)) {
    throw Error(absl::StrCat("time-out ", timeout, " s: must be above 0 and at most 1e8"));
  }
}

// A prefix that all ranks agree on and no earlier world over the same store has.
std::string NewPrefix(c10d::Store& store, int64_t rank) {
  return absl::StrCat("lins/", store.add(absl::StrCat("lins/worlds/", rank), 1));
}

}  // namespace

World::World(std::string name, int64_t rank, int64_t size, double timeout, BackendFactory factory,
             std::shared_ptr<RankContext> context, std::function<void(const std::string&)> abort)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      factory_(std::move(factory)),
      abort_(std::move(abort)),
      context_(std::move(context)) {
  CheckWorld(rank_, size_, timeout_);
}

World::~World() { Shutdown(); }

std::shared_ptr<World> World::Single() {
  return std::shared_ptr<World>(
      new World("single", 0, 1, 60.0, /*factory=*/nullptr, RankContext::Current()));
}

std::vector<std::shared_ptr<World>> World::Threads(int64_t size, double timeout_seconds,
                                                   c10::DeviceType device) {
  CheckWorld(0, size, timeout_seconds);
  auto hub = std::make_shared<ThreadsHub>();
  std::vector<std::shared_ptr<World>> worlds;
  for (int64_t rank = 0; rank < size; ++rank) {
    worlds.emplace_back(new World(
        "threads", rank, size, timeout_seconds,
        [hub, device](const std::vector<int64_t>& ranks, int64_t index, const Nodes& nodes,
                      const std::string& key) {
          std::unique_ptr<Backend> host = hub->Join(ranks, index, nodes, key);
          if (device == c10::DeviceType::CPU) return host;
          return StageThroughHost(std::move(host), device);
        },
        std::make_shared<RankContext>(), [hub](const std::string& reason) { hub->Abort(reason); }));
    worlds.back()->device_ = device;
  }
  return worlds;
}

std::shared_ptr<World> World::Gloo(c10::intrusive_ptr<c10d::Store> store, int64_t rank,
                                   int64_t size, double timeout_seconds) {
  CheckWorld(rank, size, timeout_seconds);
  const std::string prefix = NewPrefix(*store, rank);
  auto gloo = std::make_shared<GlooFactory>(std::move(store), timeout_seconds);
  return std::shared_ptr<World>(new World(
      "gloo", rank, size, timeout_seconds,
      [gloo, prefix](const std::vector<int64_t>& ranks, int64_t index, const Nodes& nodes,
                     const std::string& key) {
        return gloo->Connect(ranks, index, nodes, absl::StrCat(prefix, "/", key));
      },
      RankContext::Current()));
}

std::shared_ptr<World> World::Nccl(c10::intrusive_ptr<c10d::Store> store, int64_t rank,
                                   int64_t size, double timeout_seconds) {
  CheckNccl();
  CheckWorld(rank, size, timeout_seconds);
  const std::string prefix = NewPrefix(*store, rank);
  return Nccl(NcclGroups(std::move(store), prefix), c10::DeviceType::CUDA, rank, size,
              timeout_seconds);
}

std::shared_ptr<World> World::Nccl(const C10dGroups& groups, c10::DeviceType device, int64_t rank,
                                   int64_t size, double timeout_seconds) {
  std::shared_ptr<World> world(new World(
      "nccl", rank, size, timeout_seconds,
      [groups, device, timeout_seconds](const std::vector<int64_t>& ranks, int64_t index,
                                        const Nodes&, const std::string& key) {
        return MakeC10dBackend(groups(ranks, index, key, timeout_seconds), index, device);
      },
      RankContext::Current()));
  world->device_ = device;
  return world;
}

void World::CheckRunning() const {
  if (shut_down_) throw Error("this world has been shut down", Error::Kind::kRuntime);
}

Stream& World::Background(Role role, c10::Device queue) {
  std::lock_guard lock(mutex_);
  CheckRunning();
  std::unique_ptr<Stream>& stream = background_[static_cast<int>(role)];
  if (!stream) {
    stream = std::make_unique<Stream>(/*concurrent=*/true, queue, std::string(RoleName(role)));
  }
  return *stream;
}

void World::CheckCompleted() {
  if (name_ != "nccl") return;
  std::vector<Communicator*> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, comm] : communicators_) all.push_back(comm.get());
  }
  for (Communicator* comm : all) comm->CheckCompleted();
}

Communicator& World::Get(const std::vector<int64_t>& ranks, Role role, Lane lane) {
  const Key key(ranks, role, lane);
  std::unique_lock lock(mutex_);
  while (true) {
    CheckRunning();
    if (const auto found = communicators_.find(key); found != communicators_.end()) {
      return *found->second;
    }
    if (connecting_.insert(key).second) break;
    connected_.wait(lock);  // another thread of this rank is at it
  }
  // Meeting the partners happens without the lock: they may be waiting for what another thread of
  // this rank does in a group that exists.
  lock.unlock();
  std::unique_ptr<Communicator> made;
  std::exception_ptr failure;
  try {
    made = Connect(ranks, role, lane);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  connecting_.erase(key);
  connected_.notify_all();
  if (failure) std::rethrow_exception(failure);
  CheckRunning();
  return *communicators_.emplace(key, std::move(made)).first->second;
}

void World::SetNodeSize(int64_t ranks) {
  if (ranks < 0) throw Error(absl::StrCat("ranks per node, ", ranks, ": must be at least 0"));
  node_size_ = ranks;
}

Communicator& World::Everyone(Role role) {
  std::vector<int64_t> ranks(size_);
  std::iota(ranks.begin(), ranks.end(), 0);
  return Get(ranks, role);
}

std::unique_ptr<Communicator> World::Connect(const std::vector<int64_t>& ranks, Role role,
                                             Lane lane) {
  std::vector<int64_t> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (sorted.empty() || sorted.front() < 0 || sorted.back() >= size_ || !distinct) {
    throw Error(
        absl::StrCat("group ", List(ranks), ": must hold distinct ranks from 0 to ", size_ - 1));
  }
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    throw Error(absl::StrCat("group ", List(ranks), " does not contain this rank, ", rank_));
  }
  const int64_t index = own - ranks.begin();
  std::unique_ptr<Backend> backend;
  if (ranks.size() > 1) {
    const Nodes nodes(ranks, node_size_);
    // Ranks that do not agree about the nodes do not meet.
    const std::string key =
        absl::StrCat(RoleName(role), lane == Lane::kBackground ? "/background" : "", "/",
                     absl::StrJoin(ranks, ","), nodes.count() > 1 ? "/" : "",
                     nodes.count() > 1 ? nodes.ToString() : "");
    try {
      backend = factory_(ranks, index, nodes, key);
    } catch (const std::exception& e) {
      throw Error(absl::StrCat("rank ", rank_, " cannot connect group ", List(ranks), " for role ",
                               RoleName(role), " over ", name_, ": ", e.what()),
                  Error::Kind::kRuntime);
    }
  }
  return std::make_unique<Communicator>(std::move(backend), ranks, index, role, timeout_, context_);
}

void World::Abort(const std::string& reason) {
  if (abort_) abort_(reason);
}

namespace {

// Lets the rank's executors end what they have under way: updates of the last step, say. False
// where they are stuck, for want of a rank that has gone.
bool Quiesced(const std::shared_ptr<RankContext>& context, double seconds) {
  const auto done = std::make_shared<std::promise<void>>();
  std::thread([context, done] {
    context->Quiesce();
    done->set_value();
  }).detach();
  return done->get_future().wait_for(std::chrono::duration<double>(seconds)) ==
         std::future_status::ready;
}

}  // namespace

void World::Shutdown() {
  constexpr double kPatience = 5;
  if (!shut_down_ && size_ > 1 && !Quiesced(context_, std::min(timeout_, kPatience))) {
    // They still use the communicators, which therefore stay until the process ends.
    const std::lock_guard lock(mutex_);
    shut_down_ = true;
    static auto* const kept = new std::vector<decltype(communicators_)>;
    kept->push_back(std::move(communicators_));
    communicators_.clear();
    factory_ = nullptr;
    return;
  }
  std::unique_lock lock(mutex_);
  shut_down_ = true;
  auto background = std::move(background_);
  lock.unlock();
  for (std::unique_ptr<Stream>& stream : background) stream.reset();  // ends what it runs
  lock.lock();
  connected_.wait(lock, [this] { return connecting_.empty(); });
  communicators_.clear();  // in the order of their groups and roles
  factory_ = nullptr;
}

}  // namespace lins
