// A world: all ranks of a job as one of them sees it, and the communicators it has created so far.
//
//   auto world = World::Gloo(store, rank, size, 600.0);         // processes, over a c10d store
//   auto worlds = World::Threads(4);                            // ranks as threads, one world each
//   world->Get({0, 2}, Role::kReduce).AllReduce(x, ReduceOp::kSum).Wait();
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "comm/c10d_backend.h"
#include "comm/communicator.h"

namespace c10d {
class Store;
}

namespace lins {

class Nodes;
class RankContext;
class Stream;

class World {
 public:
  // One process, one rank.
  static std::shared_ptr<World> Single();
  // `size` ranks of this process that share memory. Give worlds[r] to the thread of rank r, which
  // begins with RankContext::Scope(worlds[r]->context_ptr()): each world has a context of its
  // own. Tensors are on `device`, which all ranks share, and go by way of the host where it is no
  // CPU.
  static std::vector<std::shared_ptr<World>> Threads(int64_t size, double timeout_seconds = 60.0,
                                                     c10::DeviceType device = c10::DeviceType::CPU);
  // Processes (or threads) that meet in a store. Collective.
  static std::shared_ptr<World> Gloo(c10::intrusive_ptr<c10d::Store> store, int64_t rank,
                                     int64_t size, double timeout_seconds);
  // As Gloo, over NCCL on the current CUDA device. Throws where lins was built without CUDA.
  static std::shared_ptr<World> Nccl(c10::intrusive_ptr<c10d::Store> store, int64_t rank,
                                     int64_t size, double timeout_seconds);
  // The same over other groups than NCCL's, of tensors on `device`: how the calls that NCCL would
  // get are tested without a GPU.
  static std::shared_ptr<World> Nccl(const C10dGroups& groups, c10::DeviceType device, int64_t rank,
                                     int64_t size, double timeout_seconds);

  ~World();
  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  double timeout() const { return timeout_; }
  const std::string& backend() const { return name_; }  // "single", "threads", "gloo", "nccl"
  // Where tensors must be. A world of one rank takes them anywhere, and says CPU.
  c10::DeviceType device() const { return device_; }
  RankContext& context() const { return *context_; }
  const std::shared_ptr<RankContext>& context_ptr() const { return context_; }

  // The communicator of `ranks` (which contain this rank; their order is the group's) for `role`:
  // created on first use, by all its ranks, and kept until Shutdown. Those of kBackground are for
  // what Background(role) runs, whose order against the caller's own operations is not known.
  enum class Lane { kCaller, kBackground };
  Communicator& Get(const std::vector<int64_t>& ranks, Role role, Lane lane = Lane::kCaller);

  // Runs tasks in order beside the caller: what launches the later steps of a redistribution. The
  // queue of a role is always the same.
  Stream& Background(Role role, c10::Device queue = c10::Device(c10::kCPU));
  // Throws the Error of an operation that has failed on a device after it was waited for: what the
  // host reads from a device is only good after this. Never blocks.
  void CheckCompleted();
  // Throws once Shutdown has begun.
  void CheckRunning() const;

  // The communicator of all ranks, in order.
  Communicator& Everyone(Role role);

  // Ranks per node, with rank = node * ranks + local; 0 (as at first): unknown. Communicators made
  // afterwards use it to cross between nodes no more often than needed, and add up in the order
  // that comm/communicator.h describes. All ranks say the same, before they make the same groups.
  void SetNodeSize(int64_t ranks);

  // Throws an Error on every rank unless all pass the same `value`: "ranks disagree about WHAT:
  // rank 0 has
  // ..., rank 2 has ...". Collective over the world.
  void CheckAgreement(const std::string& what, const std::string& value);

  // Every rank's text, in the order of ranks. Collective over the world.
  std::vector<std::string> GatherTexts(const std::string& text);

  // Wakes every rank that waits in this world with an error that gives the reason; later operations
  // fail at once. Ranks as threads only; elsewhere the time-out does it.
  void Abort(const std::string& reason);
  // Releases all communicators, in a fixed order. Further use is an error. Called by the
  // destructor.
  void Shutdown();

 private:
  // Makes the transport of one group; the key is the same on all its ranks and unique in the world.
  using BackendFactory =
      std::function<std::unique_ptr<Backend>(const std::vector<int64_t>& ranks, int64_t index,
                                             const Nodes& nodes, const std::string& key)>;
  World(std::string name, int64_t rank, int64_t size, double timeout, BackendFactory factory,
        std::shared_ptr<RankContext> context, std::function<void(const std::string&)> abort = {});

  std::string name_;
  c10::DeviceType device_ = c10::DeviceType::CPU;
  int64_t rank_, size_;
  double timeout_;
  BackendFactory factory_;
  std::function<void(const std::string&)> abort_;
  std::shared_ptr<RankContext> context_;
  using Key = std::tuple<std::vector<int64_t>, Role, Lane>;
  std::unique_ptr<Communicator> Connect(const std::vector<int64_t>& ranks, Role role, Lane lane);
  std::atomic<int64_t> node_size_ = 0;

  std::mutex mutex_;
  std::condition_variable connected_;
  std::set<Key> connecting_;  // groups being made, outside the lock
  std::map<Key, std::unique_ptr<Communicator>> communicators_;
  std::array<std::unique_ptr<Stream>, 4> background_;  // by role
  std::atomic<bool> shut_down_ = false;
};

}  // namespace lins
