#include "kernels/elementwise.cuh"

namespace lins::device {
namespace {

template <typename T, bool kAmsgrad>
__device__ __forceinline__ void Update(const AdamConstants<T>& c, T& p, T g, T* s) {
  if (c.l2 != 0) g = AdamDecayed(c, g, p);
  AdamMoments(c, g, s[0], s[1]);
  T largest = s[1];
  if constexpr (kAmsgrad) largest = s[2] = s[2] < s[1] ? s[1] : s[2];
  p = AdamParameter(c, p, s[0], static_cast<T>(sqrt(largest)));
}

template <typename T, bool kAmsgrad>
struct AdamRule : KnownScale<T> {
  AdamConstants<T> c;
  __device__ __forceinline__ void operator()(T& p, T g, T* s) const {
    Update<T, kAmsgrad>(c, p, g, s);
  }
};

template <typename T>
struct Prepared {
  AdamConstants<T> constants;
  T scale;
};

// What one thread works out before the others start.
template <typename T, bool kAmsgrad>
struct AdamRuleOnDevice {
  const Prepared<T>* prepared;
  __device__ __forceinline__ T scale(const Slice&) const { return prepared->scale; }
  __device__ __forceinline__ void operator()(T& p, T g, T* s) const {
    Update<T, kAmsgrad>(prepared->constants, p, g, s);
  }
};

template <typename T>
__global__ void PrepareKernel(AdamOptions options, AdamOnDevice* on_device, Prepared<T>* out) {
  options.lr = on_device->lr;
  out->constants = PrepareAdam<T>(options, ++on_device->step);
  out->scale = static_cast<T>(options.maximize ? -on_device->grad_scale : on_device->grad_scale);
}

}  // namespace

void Adam(const AdamOptions& options, int64_t step, const Slice& slice) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    const AdamConstants<T> c = PrepareAdam<T>(options, step);
    if (options.amsgrad) {
      AdamRule<T, true> rule;
      rule.c = c;
      Elementwise<T, 3>("Adam", slice, rule);
    } else {
      AdamRule<T, false> rule;
      rule.c = c;
      Elementwise<T, 2>("Adam", slice, rule);
    }
  });
}

void AdamCapturable(const AdamOptions& options, AdamOnDevice* on_device, const Slice& slice) {
  ForType(slice, [&](auto zero) {
    using T = decltype(zero);
    Prepared<T>* prepared = nullptr;  // ordered by the stream, and part of a graph that captures it
    if (cudaMallocAsync(&prepared, sizeof(*prepared), CurrentStream()) != cudaSuccess) {
      CheckLaunch("AdamCapturable");
    }
    PrepareKernel<T><<<1, 1, 0, CurrentStream()>>>(options, on_device, prepared);
    CheckLaunch("AdamCapturable");
    if (options.amsgrad) {
      Elementwise<T, 3>("AdamCapturable", slice, AdamRuleOnDevice<T, true>{prepared});
    } else {
      Elementwise<T, 2>("AdamCapturable", slice, AdamRuleOnDevice<T, false>{prepared});
    }
    cudaFreeAsync(prepared, CurrentStream());
    CheckLaunch("AdamCapturable");
  });
}

}  // namespace lins::device
