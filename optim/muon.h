// Muon: momentum whose matrices are made orthogonal (Jordan et al., 2024), as torch.optim.Muon
// computes it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <array>
#include <cstdint>

#include "optim/adam.h"
#include "optim/slice.h"

namespace lins {

struct MuonOptions {
  double lr = 1e-3, weight_decay = 0.1, momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  int64_t ns_steps = 5;
  // kOriginal scales lr by sqrt(max(1, rows/cols)), kMatchRmsAdamW by 0.2*sqrt(max(rows, cols)).
  enum class Adjust { kOriginal, kMatchRmsAdamW } adjust = Adjust::kOriginal;
  bool maximize = false;
  bool muon = true;  // false: the group's matrices take AdamW too, e.g. embeddings
  // AdamW of all that is not a matrix, with lr and weight_decay as above.
  double adamw_beta1 = 0.9, adamw_beta2 = 0.999, adamw_eps = 1e-8;
};

AdamOptions AdamWOf(const MuonOptions& options);

// Elementwise, on any part of a matrix: b += (1-momentum)*(g - b), and
// out = g + momentum*(b - g) with Nesterov, b without, rounded to bf16. State: b.
void MuonMomentum(const MuonOptions& options, const Slice& slice, c10::BFloat16* out);

// On whole matrices, in bf16: the quintic Newton-Schulz iteration towards U V^T of x = U S V^T.
at::Tensor NewtonSchulz(const at::Tensor& x, const MuonOptions& options);

// Elementwise again: p *= 1 - lr*weight_decay;  p -= adjusted lr * update, `update` in bf16.
void MuonUpdate(const MuonOptions& options, int64_t rows, int64_t cols, const Slice& slice,
                const c10::BFloat16* update);

}  // namespace lins
