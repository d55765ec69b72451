// What all launches of kernels share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lins::device {

// Of the calling thread, on the current device: torch's.
cudaStream_t CurrentStream();
// Throws lins::Error when the launch before it failed.
void CheckLaunch(const char* kernel);

constexpr int kThreads = 256;
inline unsigned Blocks(int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

}  // namespace lins::device
