// Collectives of a group over several nodes that cross between nodes only as often as needed.
//
// Ranks of equal local index exchange across nodes, ranks of one node within it; what arrives in
// cuts in one of the two goes on in the other, so that both are busy at once. Per node, with M
// nodes and S bytes in the whole message, (M-1)/M * S bytes leave for an all-gather or a
// reduce-scatter of equal parts, twice as many for an all-reduce, and at most S for a broadcast.
#pragma once

#include <cstdint>

#include "comm/exchange.h"
#include "comm/nodes.h"

namespace lins {

// The least message, as a whole, that goes by nodes: below it, latency counts. A broadcast's rank
// that passes on what it gets has all the work of its node.
constexpr int64_t kByNodeBytes = 512 * 1024;
constexpr int64_t kByNodeBroadcastBytes = 1536 * 1024;
// A rank's part goes in up to 8 cuts (what is broadcast in up to 16) of at least so many bytes.
constexpr int64_t kByNodeCutBytes = 256 * 1024;

// As the functions of comm/direct.h, with the same results.
void AllGatherByNode(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& out,
                     const at::Tensor& in, const Counts& counts);
void BroadcastByNode(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& inout,
                     int64_t root);
// Averages of half and bfloat16 are refused: they are rounded once, after the last sum.
void ReduceByNode(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& out,
                  const at::Tensor& in, ReduceOp op, const Counts& counts, bool all);

}  // namespace lins
