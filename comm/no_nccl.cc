#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/nccl.h"
#include "mesh/error.h"

namespace lins {

void CheckNccl() {
  throw Error(
      "lins was built without CUDA, so there is no NCCL: use the gloo backend, or rebuild "
      "against a CUDA build of torch");
}

C10dGroups NcclGroups(c10::intrusive_ptr<c10d::Store>, const std::string&) {
  CheckNccl();
  return nullptr;
}

}  // namespace lins
