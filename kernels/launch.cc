#include "kernels/launch.h"

#include <c10/cuda/CUDAStream.h>

#include "absl/strings/str_cat.h"
#include "kernels/device.h"
#include "mesh/error.h"

namespace lins::device {

bool Compiled() { return true; }

cudaStream_t CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void CheckLaunch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw Error(
      absl::StrCat("the kernel ", kernel, " could not be launched: ", cudaGetErrorString(error)),
      Error::Kind::kRuntime);
}

}  // namespace lins::device
