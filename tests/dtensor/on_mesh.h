// A live mesh whose ranks are threads, for tests of this folder and those above it.
#pragma once

#include <functional>
#include <vector>

#include "dtensor/live_mesh.h"
#include "tests/comm/ranks.h"

namespace lins::testing {

// Runs fn(mesh) on every rank of a mesh over axes node and gpu. A rank that throws wakes the
// others.
inline void OnMesh(std::vector<int64_t> shape, const std::function<void(const LiveMesh&)>& fn) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  const auto worlds = World::Threads(size, 20.0);
  RunRanks(
      size,
      [&](int64_t rank) {
        RankContext::Scope scope(worlds[rank]->context_ptr());
        fn(LiveMesh::Create(worlds[rank], shape, {"node", "gpu"}));
      },
      [&](const char* what) { worlds[0]->Abort(what); });
}

}  // namespace lins::testing
