#include "comm/by_node.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "mesh/error.h"

namespace lins {
namespace {

constexpr int64_t kCuts = 8;
constexpr int64_t kBroadcastCuts = 16;  // a cut passes through two links, one after the other

enum Phase { kGatherAcross, kGatherWithin, kReduceWithin, kReduceAcross };

// This rank's place, and the ranks it exchanges with.
struct Place {
  Place(const Nodes& nodes, int64_t index)
      : nodes(nodes), node(nodes.node(index)), local(nodes.local(index)) {}

  // fn(to, from) for the ranks of equal local index on other nodes, those of the next and the
  // previous node first.
  template <typename Fn>
  void Across(Fn fn) const {
    const int64_t m = nodes.count();
    for (int64_t d = 1; d < m; ++d) {
      fn(nodes.At((node + d) % m, local), nodes.At((node + m - d) % m, local));
    }
  }
  // fn(to, from) for the others of this node.
  template <typename Fn>
  void Within(Fn fn) const {
    const int64_t l = nodes.per_node();
    for (int64_t d = 1; d < l; ++d) {
      fn(nodes.At(node, (local + d) % l), nodes.At(node, (local + l - d) % l));
    }
  }
  // fn(rank) for the ranks of local index `other` on the nodes after this one, then on this one.
  template <typename Fn>
  void Column(int64_t other, Fn fn) const {
    const int64_t m = nodes.count();
    for (int64_t d = 1; d <= m; ++d) fn(nodes.At((node + d) % m, other));
  }

  const Nodes& nodes;
  const int64_t node, local;
};

// The half that spreads parts: a rank sends its own (Own) to all ranks of its node and to those of
// equal local index elsewhere, and passes on to its node what comes from another one (AddSteps).
class Gather {
 public:
  Gather(const Place& place, const std::vector<Piece>& parts, const Cuts& cuts)
      : place_(place), parts_(parts), cuts_(cuts) {}

  void PostReceives(Exchange& exchange) {
    for (int64_t s = 0; s < cuts_.count(); ++s) {
      place_.Across([&](int64_t, int64_t from) {
        exchange.Recv(parts_[from].Cut(cuts_, s), from, kGatherAcross);
        received_.push_back(exchange.posted());
      });
    }
    place_.Within([&](int64_t, int64_t from) {
      for (int64_t s = 0; s < cuts_.count(); ++s) {
        exchange.Recv(parts_[from].Cut(cuts_, s), from, kGatherWithin);
      }
      // In the order in which that rank passes on what it gets.
      for (int64_t s = 0; s < cuts_.count(); ++s) {
        const Place other(place_.nodes, from);
        other.Across([&](int64_t, int64_t origin) {
          exchange.Recv(parts_[origin].Cut(cuts_, s), from, kGatherWithin);
        });
      }
    });
  }

  // What is to be sent once cut s of the own part is there.
  std::vector<Exchange::Message> Own(const Piece& part, int64_t s) const {
    std::vector<Exchange::Message> sends;
    const Piece cut = part.Cut(cuts_, s);
    place_.Across([&](int64_t to, int64_t) { sends.push_back({cut, to, kGatherAcross}); });
    place_.Within([&](int64_t to, int64_t) { sends.push_back({cut, to, kGatherWithin}); });
    return sends;
  }

  void AddSteps(Exchange& exchange) const {
    auto received = received_.begin();
    for (int64_t s = 0; s < cuts_.count(); ++s) {
      place_.Across([&](int64_t, int64_t from) {
        Exchange::Step step{.received = *received++};
        place_.Within([&](int64_t to, int64_t) {
          step.sends.push_back({parts_[from].Cut(cuts_, s), to, kGatherWithin});
        });
        exchange.Add(std::move(step));
      });
    }
  }

 private:
  const Place& place_;
  const std::vector<Piece>& parts_;
  const Cuts& cuts_;
  std::vector<size_t> received_;
};

int64_t Most(const Counts& counts) { return *std::max_element(counts.begin(), counts.end()); }

}  // namespace

void AllGatherByNode(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& out,
                     const at::Tensor& in, const Counts& counts) {
  const Place place(nodes, index);
  const Cuts cuts(Most(counts), in.element_size(), kCuts, kByNodeCutBytes);
  const std::vector<Piece> parts = Parts(out, counts);
  const Piece own = {in, 0, counts[index]};
  Gather gather(place, parts, cuts);
  gather.PostReceives(exchange);
  // All that goes across, then what stays.
  std::vector<Exchange::Message> later;
  for (int64_t s = 0; s < cuts.count(); ++s) {
    for (Exchange::Message& message : gather.Own(own, s)) {
      if (message.phase == kGatherAcross) {
        exchange.Send(message.what, message.to, message.phase);
      } else {
        later.push_back(std::move(message));
      }
    }
  }
  for (const Exchange::Message& message : later) {
    exchange.Send(message.what, message.to, message.phase);
  }
  CopyPiece(parts[index], own);
  gather.AddSteps(exchange);
}

// A chain: the root's node sends to the next one, that one to its next, and the rank of the root's
// local index passes everything on to the others of its node.
void BroadcastByNode(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& inout,
                     int64_t root) {
  const Place place(nodes, index);
  const Piece all = {inout, 0, inout.numel()};
  const Cuts cuts(all.n, inout.element_size(), kBroadcastCuts, kByNodeCutBytes);
  const int64_t column = nodes.local(root), last = nodes.node(root);
  if (place.local != column) {
    for (int64_t s = 0; s < cuts.count(); ++s) {
      exchange.Recv(all.Cut(cuts, s), nodes.At(place.node, column), kGatherWithin);
    }
    return;
  }
  const int64_t m = nodes.count(), next = (place.node + 1) % m;
  for (int64_t s = 0; s < cuts.count() && index != root; ++s) {
    exchange.Recv(all.Cut(cuts, s), nodes.At((place.node + m - 1) % m, column), kGatherAcross);
  }
  for (int64_t s = 0; s < cuts.count(); ++s) {
    Exchange::Step step{.received = static_cast<size_t>(s + 1)};
    if (next != last) {
      step.sends.push_back({all.Cut(cuts, s), nodes.At(next, column), kGatherAcross});
    }
    place.Within([&](int64_t to, int64_t) {
      step.sends.push_back({all.Cut(cuts, s), to, kGatherWithin});
    });
    if (index != root) {
      exchange.Add(std::move(step));
    } else {
      for (const Exchange::Message& send : step.sends) {
        exchange.Send(send.what, send.to, send.phase);
      }
    }
  }
}

// For each local index, the ranks of a node add up what goes to the ranks of that index on other
// nodes; these sums go across, and each rank adds those it gets to what its own node gives it. The
// places that results are received into have been read by then: whoever sends a result has what
// came from there, or a sum of which it is part.
void ReduceByNode(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& out,
                  const at::Tensor& in, ReduceOp op, const Counts& counts, bool all) {
  const bool average = op == ReduceOp::kAvg;
  LINS_CHECK(!average || in.element_size() > 2, "an average of a narrow type by nodes");
  const Place place(nodes, index);
  const int64_t l = nodes.per_node(), m = nodes.count(), n = counts[index];
  const Cuts cuts(Most(counts), in.element_size(), kCuts, kByNodeCutBytes);
  const std::vector<Piece> parts = Parts(in, counts);
  const Piece own = all ? parts[index] : Piece{out, 0, n};

  // Memory for what the others of this node contribute to the ranks of this local index, and for
  // the sums of other nodes.
  int64_t staged = (m - 1) * n;
  place.Column(place.local, [&](int64_t to) { staged += (l - 1) * counts[to]; });
  const at::Tensor staging = exchange.Stage(staged, in.scalar_type());
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    used += size;
    return Piece{staging, used - size, size};
  };
  std::vector<std::vector<Piece>> within(nodes.size());  // [to][local index of the contributor]
  place.Column(place.local, [&](int64_t to) {
    for (int64_t local = 0; local < l; ++local) {
      within[to].push_back(local == place.local ? parts[to] : take(counts[to]));
    }
  });
  std::vector<Piece> across(nodes.size());  // sums of other nodes, by who sends them
  place.Across([&](int64_t, int64_t from) { across[from] = take(n); });

  // Cuts of what will cross come first.
  const auto each_cut = [&](int64_t local, auto fn) {
    for (const bool here : {false, true}) {
      for (int64_t s = 0; s < cuts.count(); ++s) {
        place.Column(local, [&](int64_t to) {
          if ((nodes.node(to) == place.node) == here) fn(to, s);
        });
      }
    }
  };
  std::vector<size_t> here, complete;  // receives that complete a sum of this node, and all sums
  each_cut(place.local, [&](int64_t to, int64_t s) {
    place.Within([&](int64_t, int64_t from) {
      exchange.Recv(within[to][nodes.local(from)].Cut(cuts, s), from, kReduceWithin);
    });
    here.push_back(exchange.posted());
  });
  for (int64_t s = 0; s < cuts.count(); ++s) {
    place.Across([&](int64_t, int64_t from) {
      exchange.Recv(across[from].Cut(cuts, s), from, kReduceAcross);
    });
    complete.push_back(exchange.posted());
  }
  Gather gather(place, parts, cuts);
  if (all) gather.PostReceives(exchange);
  place.Within([&](int64_t to, int64_t) {
    each_cut(nodes.local(to), [&](int64_t rank, int64_t s) {
      exchange.Send(parts[rank].Cut(cuts, s), to, kReduceWithin);
    });
  });

  // A sum for another node replaces a contribution that was received.
  auto received = here.begin();
  each_cut(place.local, [&](int64_t to, int64_t s) {
    if (to == index) return;
    const Piece sum = within[to][place.local == 0 ? 1 : 0].Cut(cuts, s);
    Exchange::Step step{.received = *received++, .into = sum, .op = average ? ReduceOp::kSum : op};
    for (const Piece& part : within[to]) step.parts.push_back(part.Cut(cuts, s).data());
    step.sends.push_back({sum, to, kReduceAcross});
    exchange.Add(std::move(step));
  });
  for (int64_t s = 0; s < cuts.count(); ++s) {
    Exchange::Step step{
        .received = complete[s], .into = own.Cut(cuts, s), .op = op, .divisor = nodes.size()};
    for (int64_t node = 0; node < m; ++node) {
      const auto add = [&](const Piece& part) { step.parts.push_back(part.Cut(cuts, s).data()); };
      if (node == place.node) {
        for (const Piece& part : within[index]) add(part);
      } else {
        add(across[nodes.At(node, place.local)]);
      }
      step.runs.push_back(node == place.node ? l : 1);
    }
    if (all) step.sends = gather.Own(own, s);
    exchange.Add(std::move(step));
  }
  if (all) gather.AddSteps(exchange);
  exchange.Keep(in);
}

}  // namespace lins
