// Updates of optimizers beside a copy and a triad of the same bytes. Arguments: MiB of fp32
// parameters, threads.
//
//   bench_optim --benchmark_enable_random_interleaving=true --benchmark_repetitions=9
//
// bytes_per_second counts what a rule must read and write once: AdamW 28 bytes per parameter, a
// triad 12 (a = b + s*c), a copy 8. `plain` is AdamW as one loop in C++, by the compiler alone.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>

#include "mesh/simd.h"
#include "optim/adam.h"
#include "optim/adam8bit.h"
#include "optim/norm.h"
#include "optim/sgd.h"

namespace lins {
namespace {

struct Arrays {
  int64_t n;
  at::Tensor p, g, m, v;
  explicit Arrays(const benchmark::State& state)
      : n(state.range(0) << 18),
        p(at::randn({n})),
        g(at::randn({n})),
        m(at::zeros({n})),
        v(at::zeros({n})) {
    at::set_num_threads(static_cast<int>(state.range(1)));
  }
  Slice slice(bool two_states = true) const {
    Slice s;
    s.numel = n;
    s.param = p.mutable_data_ptr();
    s.grad = g.const_data_ptr();
    s.grad_type = g.scalar_type();
    s.state[0] = m.mutable_data_ptr();
    if (two_states) s.state[1] = v.mutable_data_ptr();
    return s;
  }
};

void Report(benchmark::State& state, int64_t n, int64_t bytes_per_element) {
  state.SetBytesProcessed(state.iterations() * n * bytes_per_element);
  state.SetItemsProcessed(state.iterations() * n);
}

// fn(begin, end) over as many threads as set.
template <typename Fn>
void Parallel(int64_t n, Fn fn) {
  at::parallel_for(0, n, 1 << 14, fn);
}

void Copy(benchmark::State& state) {
  const Arrays x(state);
  float* to = x.m.mutable_data_ptr<float>();
  const float* from = x.p.const_data_ptr<float>();
  for (auto _ : state) {
    Parallel(x.n, [&](int64_t b, int64_t e) { std::memcpy(to + b, from + b, (e - b) * 4); });
    benchmark::ClobberMemory();
  }
  Report(state, x.n, 8);
}

LINS_SIMD void TriadOf(float* __restrict a, const float* __restrict b, const float* __restrict c,
                       int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
}

void Triad(benchmark::State& state) {
  const Arrays x(state);
  float* a = x.m.mutable_data_ptr<float>();
  const float *b = x.p.const_data_ptr<float>(), *c = x.g.const_data_ptr<float>();
  for (auto _ : state) {
    Parallel(x.n, [&](int64_t i, int64_t e) { TriadOf(a + i, b + i, c + i, e - i); });
    benchmark::ClobberMemory();
  }
  Report(state, x.n, 12);
}

LINS_SIMD void PlainOf(float* __restrict p, const float* __restrict g, float* __restrict m,
                       float* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    p[i] = p[i] * 0.99999f - 1e-3f * m[i] / (std::sqrt(v[i]) * 1.01f + 1e-8f);
  }
}

void AdamWPlain(benchmark::State& state) {
  const Arrays x(state);
  float *p = x.p.mutable_data_ptr<float>(), *m = x.m.mutable_data_ptr<float>(),
        *v = x.v.mutable_data_ptr<float>();
  const float* g = x.g.const_data_ptr<float>();
  for (auto _ : state) {
    Parallel(x.n, [&](int64_t b, int64_t e) { PlainOf(p + b, g + b, m + b, v + b, e - b); });
    benchmark::ClobberMemory();
  }
  Report(state, x.n, 28);
}

void AdamWFp32(benchmark::State& state) {
  const Arrays x(state);
  int64_t step = 0;
  for (auto _ : state) AdamUpdate({}, ++step, x.slice());
  Report(state, x.n, 28);
}

void AdamWFused(benchmark::State& state) {
  const Arrays x(state);
  int64_t step = 0;
  for (auto _ : state) AdamUpdate({.fused = true}, ++step, x.slice());
  Report(state, x.n, 28);
}

// The norm is the extra read of the gradients; the scale is applied in the update.
void AdamWClipped(benchmark::State& state) {
  const Arrays x(state);
  int64_t step = 0;
  for (auto _ : state) {
    Slice s = x.slice();
    s.grad_scale = 1 / std::sqrt(PowerSum(x.g, 2));
    AdamUpdate({}, ++step, s);
  }
  Report(state, x.n, 32);
}

// bf16 gradients and parameters, fp32 masters: 4+4+4 read and written, 2 read, 2 written.
void AdamWMixed(benchmark::State& state) {
  Arrays x(state);
  x.g = x.g.to(at::kBFloat16);
  const at::Tensor copy = at::zeros({x.n}, at::kBFloat16);
  Slice s = x.slice();
  s.copy = copy.mutable_data_ptr();
  s.rounding.stochastic = state.range(2) != 0;
  int64_t step = 0;
  for (auto _ : state) AdamUpdate({}, ++step, s);
  Report(state, x.n, 28);
}

void AdamW8bits(benchmark::State& state) {
  const Arrays x(state);
  const int64_t blocks = x.n / kQuantBlock;
  const at::Tensor codes = at::zeros({2, x.n}, at::kByte),
                   scales = at::zeros({2, blocks}, at::kByte);
  const Moments8bit moments = {
      codes[0].mutable_data_ptr<uint8_t>(), scales[0].mutable_data_ptr<uint8_t>(),
      codes[1].mutable_data_ptr<uint8_t>(), scales[1].mutable_data_ptr<uint8_t>()};
  int64_t step = 0;
  for (auto _ : state) Adam8bitUpdate({}, ++step, x.slice(), moments);
  Report(state, x.n, 16);
}

void SGDMomentum(benchmark::State& state) {
  const Arrays x(state);
  int64_t step = 0;
  for (auto _ : state) SGDUpdate({.momentum = 0.9}, ++step, x.slice(false));
  Report(state, x.n, 20);
}

void LionFp32(benchmark::State& state) {
  const Arrays x(state);
  for (auto _ : state) LionUpdate({}, x.slice(false));
  Report(state, x.n, 20);
}

void Norm(benchmark::State& state) {
  const Arrays x(state);
  for (auto _ : state) benchmark::DoNotOptimize(PowerSum(x.g, 2));
  Report(state, x.n, 4);
}

#define LINS_BENCHMARK(fn) \
  BENCHMARK(fn)->ArgsProduct({{64}, {1, 2}})->UseRealTime()->Unit(benchmark::kMillisecond)
LINS_BENCHMARK(Copy);
LINS_BENCHMARK(Triad);
LINS_BENCHMARK(AdamWPlain);
LINS_BENCHMARK(AdamWFp32);
LINS_BENCHMARK(AdamWFused);
LINS_BENCHMARK(AdamWClipped);
LINS_BENCHMARK(AdamW8bits);
LINS_BENCHMARK(SGDMomentum);
LINS_BENCHMARK(LionFp32);
LINS_BENCHMARK(Norm);
BENCHMARK(AdamWMixed)
    ->ArgsProduct({{64}, {1, 2}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lins

BENCHMARK_MAIN();
