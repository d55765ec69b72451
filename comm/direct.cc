#include "comm/direct.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace lins {
namespace {

// Larger reductions go in up to so many cuts, of at least so many bytes per rank.
constexpr int64_t kCuts = 8;
constexpr int64_t kCutBytes = 256 * 1024;

// fn(to, from) for each of the other ranks, each rank beginning with its own neighbours.
template <typename Fn>
void EachPeer(int64_t index, int64_t size, Fn fn) {
  for (int64_t step = 1; step < size; ++step) {
    fn((index + step) % size, (index + size - step) % size);
  }
}

int64_t MostBytes(const Counts& counts, const at::Tensor& tensor) {
  return *std::max_element(counts.begin(), counts.end()) * tensor.element_size();
}

}  // namespace

void DirectAllGather(Exchange& exchange, int64_t index, const at::Tensor& out, const at::Tensor& in,
                     const Counts& counts) {
  const int64_t k = static_cast<int64_t>(counts.size());
  const std::vector<Piece> parts = Parts(out, counts);
  const Piece own = {in, 0, counts[index]};
  PostInOrder(
      MostBytes(counts, in),
      [&] { EachPeer(index, k, [&](int64_t, int64_t from) { exchange.Recv(parts[from], from); }); },
      [&] { EachPeer(index, k, [&](int64_t to, int64_t) { exchange.Send(own, to); }); });
  CopyPiece(parts[index], own);
}

void DirectAllToAll(Exchange& exchange, int64_t index, const at::Tensor& out, const at::Tensor& in,
                    const Counts& out_counts, const Counts& in_counts) {
  const int64_t k = static_cast<int64_t>(in_counts.size());
  const std::vector<Piece> outs = Parts(out, out_counts), ins = Parts(in, in_counts);
  PostInOrder(
      std::max(MostBytes(out_counts, out), MostBytes(in_counts, in)),
      [&] { EachPeer(index, k, [&](int64_t, int64_t from) { exchange.Recv(outs[from], from); }); },
      [&] { EachPeer(index, k, [&](int64_t to, int64_t) { exchange.Send(ins[to], to); }); });
  CopyPiece(outs[index], ins[index]);
}

void DirectBroadcast(Exchange& exchange, int64_t index, int64_t size, const at::Tensor& inout,
                     int64_t root) {
  const Piece all = {inout, 0, inout.numel()};
  if (index != root) return exchange.Recv(all, root);
  EachPeer(index, size, [&](int64_t to, int64_t) { exchange.Send(all, to); });
}

// Contributions arrive cut by cut, so that one is added up while the next is on its way; those of
// an all-reduce go on from there.
void DirectReduce(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& out,
                  const at::Tensor& in, ReduceOp op, const Counts& counts, bool all) {
  const int64_t k = nodes.size(), n = counts[index];
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  const Cuts cuts(most, in.element_size(), kCuts, kCutBytes);
  const std::vector<Piece> ins = Parts(in, counts);
  const std::vector<Piece> outs = all ? ins : std::vector<Piece>();
  const Piece own = all ? outs[index] : Piece{out, 0, n};
  const std::vector<Piece> slots =
      Parts(exchange.Stage((k - 1) * n, in.scalar_type()), Counts(k - 1, n));
  std::vector<Piece> parts(k);  // in the order of summation
  std::vector<const Piece*> from_rank(k);
  int64_t slot = 0;
  for (int64_t place = 0; place < k; ++place) {
    const int64_t rank = nodes.order()[place];
    parts[place] = rank == index ? ins[index] : slots[slot++];
    from_rank[rank] = &parts[place];
  }
  std::vector<size_t> received;
  PostInOrder(
      most * in.element_size(),
      [&] {
        for (int64_t s = 0; s < cuts.count(); ++s) {
          EachPeer(index, k, [&](int64_t, int64_t from) {
            exchange.Recv(from_rank[from]->Cut(cuts, s), from);
          });
          received.push_back(exchange.posted());
        }
        // A peer sends a reduced cut only after it has read this rank's contribution to it, so that
        // the results may be received over what is being sent.
        for (int64_t s = 0; s < cuts.count() && all; ++s) {
          EachPeer(index, k, [&](int64_t, int64_t from) {
            exchange.Recv(outs[from].Cut(cuts, s), from, /*phase=*/1);
          });
        }
      },
      [&] {
        for (int64_t s = 0; s < cuts.count(); ++s) {
          EachPeer(index, k, [&](int64_t to, int64_t) { exchange.Send(ins[to].Cut(cuts, s), to); });
        }
      });
  for (int64_t s = 0; s < cuts.count(); ++s) {
    Exchange::Step step{
        .received = received[s], .into = own.Cut(cuts, s), .op = op, .runs = nodes.runs()};
    for (const Piece& part : parts) step.parts.push_back(part.Cut(cuts, s).data());
    if (all) {
      EachPeer(index, k, [&](int64_t to, int64_t) { step.sends.push_back({step.into, to, 1}); });
    }
    exchange.Add(std::move(step));
  }
  exchange.Keep(in);
}

void DirectSmallAllReduce(Exchange& exchange, int64_t index, const Nodes& nodes,
                          const at::Tensor& inout, ReduceOp op) {
  // What goes out is a copy: the sum overwrites the tensor while messages may be under way.
  const int64_t k = nodes.size(), n = inout.numel();
  const std::vector<Piece> slots = Parts(exchange.Stage(k * n, inout.scalar_type()), Counts(k, n));
  const Piece whole = {inout, 0, n};
  CopyPiece(slots[index], whole);
  PostInOrder(
      n * inout.element_size(),
      [&] { EachPeer(index, k, [&](int64_t, int64_t from) { exchange.Recv(slots[from], from); }); },
      [&] { EachPeer(index, k, [&](int64_t to, int64_t) { exchange.Send(slots[index], to); }); });
  Exchange::Step step{.received = exchange.posted(), .into = whole, .op = op, .runs = nodes.runs()};
  for (const int64_t rank : nodes.order()) step.parts.push_back(slots[rank].data());
  exchange.Add(std::move(step));
}

}  // namespace lins
