// Ranks as threads, for tests of every folder.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "comm/trace.h"
#include "comm/world.h"

namespace lins::testing {

// Runs fn(rank) on n threads and rethrows the first exception.
inline void RunRanks(int64_t n, const std::function<void(int64_t)>& fn,
                     const std::function<void(const char*)>& on_error = nullptr) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        fn(rank);
      } catch (const std::exception& e) {
        {
          std::lock_guard lock(mutex);
          if (first == nullptr) first = std::current_exception();
        }
        if (on_error) on_error(e.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

// Runs fn(world) on n ranks that share memory. A rank that throws wakes the others.
inline void RunWorlds(int64_t n, const std::function<void(World&)>& fn, double timeout = 20.0) {
  const std::vector<std::shared_ptr<World>> worlds = World::Threads(n, timeout);
  RunRanks(
      n,
      [&](int64_t rank) {
        RankContext::Scope scope(worlds[rank]->context_ptr());
        fn(*worlds[rank]);
      },
      [&](const char* what) { worlds[0]->Abort(what); });
}

// The same over Gloo, through sockets, with a store in memory.
inline void RunGloo(int64_t n, const std::function<void(World&)>& fn, double timeout = 20.0) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanks(n, [&](int64_t rank) {
    RankContext::Scope scope(std::make_shared<RankContext>());
    fn(*World::Gloo(store, rank, n, timeout));
  });
}

inline std::vector<int64_t> AllRanks(const World& world) {
  std::vector<int64_t> ranks;
  for (int64_t r = 0; r < world.size(); ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace lins::testing
