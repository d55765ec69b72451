// What SGD, Lion and Muon compute for an element: for kernels of host and device.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/everywhere.h"

namespace lins {

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};

template <typename T>
struct SGDConstants {
  T lr, momentum, weight, decay;  // lr and the rest of ATen's add with alpha: negative to descend
  bool first, nesterov;
};

template <typename T>
LINS_EVERYWHERE SGDConstants<T> PrepareSGD(const SGDOptions& o, int64_t step) {
  return {static_cast<T>(-o.lr),
          static_cast<T>(o.momentum),
          static_cast<T>(1 - o.dampening),
          static_cast<T>(o.weight_decay),
          step == 1,
          o.nesterov};
}

template <typename T>
LINS_EVERYWHERE T SGDDecayed(const SGDConstants<T>& c, T g, T p) {
  return c.decay != 0 ? std::fma(c.decay, p, g) : g;
}

// Fused multiply-adds stand where ATen's add with alpha has them. `g` is decayed.
template <typename T>
LINS_EVERYWHERE void SGDStep(const SGDConstants<T>& c, T g, T& p) {
  p = std::fma(c.lr, g, p);
}

template <typename T>
LINS_EVERYWHERE void SGDStep(const SGDConstants<T>& c, T g, T& p, T& b) {
  b = c.first ? g : std::fma(c.weight, g, b * c.momentum);
  p = std::fma(c.lr, c.nesterov ? std::fma(c.momentum, b, g) : b, p);
}

struct LionOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool maximize = false;
};

template <typename T>
struct LionConstants {
  T lr, beta1, weight1, beta2, weight2, decay;
};

template <typename T>
LINS_EVERYWHERE LionConstants<T> PrepareLion(const LionOptions& o) {
  return {static_cast<T>(o.lr),        static_cast<T>(o.beta1),
          static_cast<T>(1 - o.beta1), static_cast<T>(o.beta2),
          static_cast<T>(1 - o.beta2), static_cast<T>(1 - o.lr * o.weight_decay)};
}

template <typename T>
LINS_EVERYWHERE void LionStep(const LionConstants<T>& c, T g, T& p, T& m) {
  const T u = m * c.beta1 + g * c.weight1;
  const T sign = static_cast<T>(u > 0) - static_cast<T>(u < 0);
  p = p * c.decay - c.lr * sign;
  m = m * c.beta2 + g * c.weight2;
}

// ATen's lerp, with its fused multiply-add: from the nearer end.
template <typename T>
LINS_EVERYWHERE T Lerp(T from, T to, T weight) {
  return weight < T{0.5} ? std::fma(weight, to - from, from) : std::fma(weight - 1, to - from, to);
}

template <typename T>
struct MuonConstants {
  T weight, momentum;  // of the momentum
  bool nesterov;
};

// Moves the momentum b, and returns what is made orthogonal.
template <typename T>
LINS_EVERYWHERE T MuonDirection(const MuonConstants<T>& c, T g, T& b) {
  b = Lerp(b, g, c.weight);
  return c.nesterov ? Lerp(g, b, c.momentum) : b;
}

template <typename T>
LINS_EVERYWHERE T MuonParameter(T decay, T scale, T update, T p) {
  return std::fma(scale, update, p * decay);
}

}  // namespace lins
