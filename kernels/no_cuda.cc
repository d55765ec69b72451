#include "kernels/device.h"
#include "mesh/error.h"

namespace lins::device {
namespace {

[[noreturn]] void Missing() {
  throw Error(
      "lins was built without CUDA kernels, and this tensor is on a CUDA device: build with "
      "LINS_CUDA against a CUDA build of torch");
}

}  // namespace

bool Compiled() { return false; }

void Adam(const AdamOptions&, int64_t, const Slice&) { Missing(); }
void AdamCapturable(const AdamOptions&, AdamOnDevice*, const Slice&) { Missing(); }
void Adam8bit(const Adam8bitConstants&, const Slice&, const Moments8bit&, uint32_t) { Missing(); }
void Dequantize8(bool, const uint8_t*, const uint8_t*, int64_t, float*) { Missing(); }
void Quantize8(bool, const float*, int64_t, uint8_t*, uint8_t*) { Missing(); }
void SGD(const SGDOptions&, int64_t, const Slice&) { Missing(); }
void Lion(const LionOptions&, const Slice&) { Missing(); }
void MuonMomentum(const MuonConstants<double>&, const Slice&, void*) { Missing(); }
void MuonUpdate(double, double, const Slice&) { Missing(); }
int64_t PowerSumParts(int64_t) { Missing(); }
void PowerSum(const void*, Element, int64_t, double, double*, double*) { Missing(); }
void Checksum(const void*, int64_t, uint64_t*) { Missing(); }
void ReduceInOrder(void*, const void*, int64_t, int64_t, int64_t, Element, Fold, double) {
  Missing();
}

}  // namespace lins::device
