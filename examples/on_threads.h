// Ranks as threads of this process: how the examples start them.
#pragma once

#include <cmath>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "comm/trace.h"
#include "comm/world.h"
#include "dtensor/live_mesh.h"

namespace examples {

// Calls train(mesh) on each rank of a mesh over axes node and gpu. Returns the mean over ranks of
// the losses that it gives, one for each step; NaN for those of a rank that has failed.
inline std::vector<double> OnThreads(
    int64_t nodes, int64_t gpus, size_t steps,
    const std::function<std::vector<double>(const lins::LiveMesh&)>& train) {
  const int64_t ranks = nodes * gpus;
  auto worlds = lins::World::Threads(ranks);
  std::vector<std::vector<double>> losses(ranks);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      lins::RankContext::Scope scope(worlds[r]->context_ptr());
      try {
        losses[r] = train(lins::LiveMesh::Create(worlds[r], {nodes, gpus}, {"node", "gpu"}));
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(r), e.what());
        worlds[r]->Abort(e.what());
      }
    });
  }
  for (auto& t : threads) t.join();
  std::vector<double> mean(steps, 0);
  for (const auto& one : losses) {
    for (size_t i = 0; i < steps; ++i) mean[i] += i < one.size() ? one[i] / ranks : NAN;
  }
  return mean;
}

}  // namespace examples
