#include "tests/comm/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "mesh/error.h"

namespace lins::testing {
namespace {

// Uneven counts around n, with zeros: rank r of k gets n, 0, 2n, 1, n, 0, 2n, 1, ...
Counts Uneven(int64_t k, int64_t n) {
  Counts counts(k);
  for (int64_t r = 0; r < k; ++r)
    counts[r] = r % 4 == 0 ? n : r % 4 == 1 ? 0 : r % 4 == 2 ? 2 * n : 1;
  return counts;
}

int64_t Sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t Before(const Counts& counts, int64_t index) {
  return std::accumulate(counts.begin(), counts.begin() + index, int64_t{0});
}

// Throws rather than EXPECTs: it runs on threads whose other ranks must not wait for this one.
void ExpectSame(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  if (!at::equal(got, want)) {
    throw Error(absl::StrCat(what, ": got ", at::str(got.flatten().slice(0, 0, 8)), " want ",
                             at::str(want.flatten().slice(0, 0, 8))));
  }
}

// Sum over all ranks of Contribution, by formula.
at::Tensor SumOfContributions(int64_t k, int64_t n, at::ScalarType dtype) {
  const at::Tensor i = at::arange(n, at::kLong).remainder(5);
  return (i * k + k * (k - 1) / 2).to(dtype);
}

}  // namespace

at::Tensor Contribution(int64_t rank, int64_t n, at::ScalarType dtype) {
  return (at::arange(n, at::kLong).remainder(5) + rank).to(dtype);
}

void SweepAllGather(Communicator& c, int64_t n, at::ScalarType dtype) {
  const int64_t k = c.size(), r = c.index();
  for (const Counts& counts : {Counts(), Uneven(k, n)}) {
    const Counts full = counts.empty() ? Counts(k, n) : counts;
    std::vector<at::Tensor> parts;
    for (int64_t s = 0; s < k; ++s) parts.push_back(Contribution(s, full[s], dtype));
    const at::Tensor want = at::cat(parts);
    const at::Tensor out = at::full({Sum(full)}, 77, dtype);
    c.AllGather(out, parts[r], counts).Wait();
    ExpectSame(out, want, "all_gather");
    out.fill_(77);
    const at::Tensor own = out.narrow(0, Before(full, r), full[r]);
    own.copy_(parts[r]);
    c.AllGather(out, own, counts).Wait();
    ExpectSame(out, want, "all_gather in place");
  }
}

void SweepReduceScatter(Communicator& c, int64_t n, at::ScalarType dtype) {
  const int64_t k = c.size(), r = c.index();
  for (const Counts& counts : {Counts(), Uneven(k, n)}) {
    const Counts full = counts.empty() ? Counts(k, n) : counts;
    const int64_t total = Sum(full);
    const at::Tensor in = Contribution(r, total, dtype);
    const at::Tensor want = SumOfContributions(k, total, dtype).narrow(0, Before(full, r), full[r]);
    const at::Tensor out = at::full({full[r]}, 77, dtype);
    c.ReduceScatter(out, in, ReduceOp::kSum, counts).Wait();
    ExpectSame(out, want, "reduce_scatter");
    ExpectSame(in, Contribution(r, total, dtype), "input of reduce_scatter");
    if (at::isFloatingType(dtype)) {
      c.ReduceScatter(out, in, ReduceOp::kAvg, counts).Wait();
      ExpectSame(out, (want.to(at::kDouble) / k).to(at::kFloat).to(dtype), "reduce_scatter, avg");
    }
    const at::Tensor own = in.narrow(0, Before(full, r), full[r]);
    c.ReduceScatter(own, in, ReduceOp::kSum, counts).Wait();
    const at::Tensor rest = Contribution(r, total, dtype);
    rest.narrow(0, Before(full, r), full[r]).copy_(want);
    ExpectSame(in, rest, "reduce_scatter in place");
  }
}

void SweepAllReduce(Communicator& c, int64_t n, at::ScalarType dtype) {
  const int64_t k = c.size(), r = c.index();
  const at::Tensor base = at::arange(n, at::kLong).remainder(5);
  const at::Tensor x = Contribution(r, n, dtype);
  c.AllReduce(x, ReduceOp::kSum).Wait();
  ExpectSame(x, SumOfContributions(k, n, dtype), "all_reduce");
  x.copy_(Contribution(r, n, dtype));
  c.AllReduce(x, ReduceOp::kMax).Wait();
  ExpectSame(x, (base + (k - 1)).to(dtype), "all_reduce, max");
  x.copy_(Contribution(r, n, dtype));
  c.AllReduce(x, ReduceOp::kMin).Wait();
  ExpectSame(x, base.to(dtype), "all_reduce, min");
}

void SweepAllToAll(Communicator& c, int64_t n, at::ScalarType dtype) {
  const int64_t k = c.size(), r = c.index();
  // Even, then rank s sends (s + 2t) % 3 * n elements to rank t.
  for (const bool even : {true, false}) {
    const auto count = [&](int64_t s, int64_t t) { return even ? n : (s + 2 * t) % 3 * n; };
    Counts ins(k), outs(k);
    std::vector<at::Tensor> sent, received;
    for (int64_t p = 0; p < k; ++p) {
      ins[p] = count(r, p);
      outs[p] = count(p, r);
      sent.push_back(Contribution(10 * r + p, ins[p], dtype));
      received.push_back(Contribution(10 * p + r, outs[p], dtype));
    }
    const at::Tensor out = at::full({Sum(outs)}, 77, dtype);
    c.AllToAll(out, at::cat(sent), even ? Counts() : outs, even ? Counts() : ins).Wait();
    ExpectSame(out, at::cat(received), "all_to_all");
  }
}

void SweepBroadcast(Communicator& c, int64_t n, at::ScalarType dtype) {
  for (int64_t root = 0; root < c.size(); ++root) {
    const at::Tensor x = Contribution(c.index(), n, dtype);
    c.Broadcast(x, root).Wait();
    ExpectSame(x, Contribution(root, n, dtype), "broadcast");
  }
}

void SweepCollectives(Communicator& c, int64_t n, at::ScalarType dtype) {
  SweepAllGather(c, n, dtype);
  SweepReduceScatter(c, n, dtype);
  SweepAllReduce(c, n, dtype);
  SweepAllToAll(c, n, dtype);
  SweepBroadcast(c, n, dtype);
  c.Barrier().Wait();
}

}  // namespace lins::testing
