#include "optim/adam.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "values.h"

namespace lins {
namespace {

template <typename P>
P Advance(P p, int64_t bytes) {
  if (!p) return p;
  if constexpr (std::is_same_v<P, void*>) return static_cast<char*>(p) + bytes;
  if constexpr (std::is_same_v<P, const void*>) return static_cast<const char*>(p) + bytes;
}

// The part [from, from + n) of a slice whose states are of its type.
Slice Part(const Slice& slice, int64_t from, int64_t n) {
  const auto size = [](c10::ScalarType t) { return static_cast<int64_t>(c10::elementSize(t)); };
  Slice s = slice;
  s.numel = n;
  s.param = Advance(s.param, from * size(s.type));
  s.grad = Advance(s.grad, from * size(s.grad_type));
  s.copy = Advance(s.copy, from * size(s.copy_type));
  for (void*& state : s.state) state = Advance(state, from * size(s.type));
  s.rounding.index += from;
  return s;
}

// torch.optim.AdamW and Adam, operation by operation in ATen.
struct Reference {
  at::Tensor p, m, v, x;
  void Step(const AdamOptions& a, int64_t step, at::Tensor g) {
    if (a.maximize) g = -g;
    if (a.decoupled) {
      p.mul_(1 - a.lr * a.weight_decay);
    } else if (a.weight_decay != 0) {
      g = g.add(p, a.weight_decay);
    }
    m.lerp_(g, 1 - a.beta1);
    v.mul_(a.beta2).addcmul_(g, g, 1 - a.beta2);
    if (a.amsgrad) at::maximum_out(x, x, v);
    const double root = std::sqrt(1 - std::pow(a.beta2, step));
    const at::Tensor denom = (a.amsgrad ? x : v).sqrt().div_(root).add_(a.eps);
    p.addcdiv_(m, denom, -(a.lr / (1 - std::pow(a.beta1, step))));
  }
};

const AdamOptions kSettings[] = {
    {},
    {.lr = 0.1, .beta1 = 0.2, .beta2 = 0.5, .eps = 1e-3, .weight_decay = 0},
    {.lr = 0.5, .weight_decay = 0.3, .maximize = true},
    {.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 1e-30},
    {.lr = 0.1, .weight_decay = 0.3, .decoupled = false},
    {.lr = 0.1, .weight_decay = 0, .maximize = true, .amsgrad = true, .decoupled = false},
    {.lr = 0.1, .amsgrad = true}};

void Compare(const AdamOptions& options, at::ScalarType dtype, const at::Tensor& start,
             const std::vector<at::Tensor>& grads, int64_t offset = 0) {
  const int64_t n = start.numel() - offset;
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, offset, n); };
  at::Tensor p = start.clone(), m = at::zeros_like(p), v = at::zeros_like(p), x = at::zeros_like(p);
  Reference want{part(start).clone(), part(m).clone(), part(v).clone(), part(x).clone()};
  for (size_t step = 1; step <= grads.size(); ++step) {
    const at::Tensor g = grads[step - 1];
    AdamUpdate(options, static_cast<int64_t>(step),
               SliceOf(part(p), part(g), {part(m), part(v), part(x)}));
    want.Step(options, static_cast<int64_t>(step), part(g).to(dtype));
  }
  EXPECT_TRUE(Same(part(p), want.p)) << n << " " << offset;
  EXPECT_TRUE(Same(part(m), want.m)) << n << " " << offset;
  EXPECT_TRUE(Same(part(v), want.v)) << n << " " << offset;
  EXPECT_TRUE(at::equal(p.narrow(0, 0, offset), start.narrow(0, 0, offset)));
}

TEST(AdamUpdate, HasTheBitsOfTorchForAllSizesSettingsAndAlignments) {
  for (const AdamOptions& s : kSettings) {
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const auto run = [&](int64_t n, int64_t offset) {
        std::vector<at::Tensor> grads;
        for (int64_t step = 1; step <= 3; ++step) grads.push_back(Values(n, dtype, 1 + step));
        Compare(s, dtype, Values(n, dtype, 1), grads, offset);
      };
      for (int64_t n = 0; n <= 70; ++n) run(n, n % 7 <= n ? n % 7 : 0);
      for (int64_t n : {1023, 1024, 1025, 4096, 10001}) run(n, 0);
      run(5000, 3);
    }
  }
}

TEST(AdamUpdate, HasTheBitsOfTorchOverAHundredSteps) {
  std::vector<at::Tensor> grads;
  for (int64_t step = 1; step <= 100; ++step) grads.push_back(Values(3001, at::kFloat, step));
  for (const AdamOptions& s : kSettings) Compare(s, at::kFloat, Values(3001, at::kFloat, 0), grads);
}

TEST(AdamUpdate, HasTheBitsOfTorchForDenormalsZerosAndHugeValues) {
  const at::Tensor odd =
      at::tensor({0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e-20, 3e19, -3e38, 1.0}, at::kDouble)
          .to(at::kFloat);
  const at::Tensor grads = odd.repeat({9}), start = odd.repeat_interleave(9);
  for (const AdamOptions& s : kSettings) Compare(s, at::kFloat, start, {grads, grads.flip(0)});
}

TEST(AdamUpdate, FusedDiffersInLastBitsOnly) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const int64_t n = 3001;
    const at::Tensor start = Values(n, dtype, 1);
    at::Tensor p = start.clone(), m = at::zeros({n}, dtype), v = m.clone();
    at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
    AdamOptions options{.lr = 0.1};
    for (int64_t step = 1; step <= 10; ++step) {
      const at::Tensor g = Values(n, dtype, 1 + step);
      options.fused = false;
      AdamUpdate(options, step, SliceOf(p, g, {m, v}));
      options.fused = true;
      AdamUpdate(options, step, SliceOf(p2, g, {m2, v2}));
    }
    EXPECT_TRUE(at::equal(m, m2));
    EXPECT_TRUE(at::equal(v, v2));
    // Ten updates of at most 0.1 to values of at most 2, each off by one unit in the last place.
    const double unit = dtype == at::kFloat ? 0x1p-23 : 0x1p-52;
    EXPECT_LE((p - p2).abs().max().item<double>(), 10 * 2 * unit);
  }
}

TEST(AdamUpdate, ThreadsChangeNothing) {
  const int64_t n = 200'001;
  const at::Tensor g = Values(n, at::kFloat, 4);
  std::vector<at::Tensor> results;
  const int before = at::get_num_threads();
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    at::Tensor p = Values(n, at::kFloat, 1), m = Values(n, at::kFloat, 2),
               v = Values(n, at::kFloat, 3).abs();
    AdamUpdate({}, 3, SliceOf(p, g, {m, v}));
    results.push_back(at::cat({p, m, v}));
    EXPECT_TRUE(at::equal(results.back(), results.front())) << threads;
  }
  at::set_num_threads(before);
}

TEST(AdamUpdate, GradientsAreWidenedAndScaledInThePass) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    for (double scale : {1.0, 0.3}) {
      at::Tensor p = Values(2100, at::kFloat, 1), m = at::zeros({2100}), v = at::zeros({2100});
      at::Tensor p2 = p.clone(), m2 = m.clone(), v2 = v.clone();
      const at::Tensor g = Values(2100, dtype, 2);
      Slice s = SliceOf(p, g, {m, v});
      s.grad_scale = scale;
      AdamUpdate({}, 1, s);
      AdamUpdate({}, 1, SliceOf(p2, g.to(at::kFloat).mul(scale), {m2, v2}));
      EXPECT_TRUE(at::equal(p, p2)) << dtype << " " << scale;
      EXPECT_TRUE(at::equal(v, v2)) << dtype << " " << scale;
    }
  }
}

TEST(AdamUpdate, WritesTheLowerPrecisionCopy) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (at::ScalarType master : {at::kFloat, at::kDouble}) {
      at::Tensor p = Values(2100, master, 1), m = at::zeros({2100}, master), v = m.clone();
      const at::Tensor g = Values(2100, master, 2), copy = at::zeros({2100}, dtype);
      Slice s = SliceOf(p, g, {m, v});
      s.copy = copy.mutable_data_ptr();
      s.copy_type = dtype;
      AdamUpdate({}, 1, s);
      EXPECT_TRUE(at::equal(copy, p.to(at::kFloat).to(dtype))) << dtype << " " << master;
    }
  }
}

TEST(AdamUpdate, APartIsTheSameAsTheWhole) {
  const int64_t n = 5001;
  const at::Tensor g = Values(n, at::kFloat, 4);
  std::vector<at::Tensor> results;
  for (int64_t cut : {0, 1, 1000, 5001}) {
    at::Tensor p = Values(n, at::kFloat, 1), m = Values(n, at::kFloat, 2),
               v = Values(n, at::kFloat, 3).abs();
    const at::Tensor copy = at::zeros({n}, at::kBFloat16);
    Slice s = SliceOf(p, g, {m, v});
    s.copy = copy.mutable_data_ptr();
    s.rounding = {true, 7, 100};
    AdamUpdate({}, 3, Part(s, 0, cut));
    AdamUpdate({}, 3, Part(s, cut, n - cut));
    results.push_back(at::cat({p, m, v, copy.to(at::kFloat)}));
    EXPECT_TRUE(at::equal(results.back(), results.front())) << cut;
  }
}

}  // namespace
}  // namespace lins
