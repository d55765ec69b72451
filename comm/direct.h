// Collectives in which every rank exchanges messages with every other rank itself.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/exchange.h"
#include "comm/nodes.h"

namespace lins {

// Each posts an operation of the group's rank `index` on an exchange; tensors are flat.
void DirectAllGather(Exchange& exchange, int64_t index, const at::Tensor& out, const at::Tensor& in,
                     const Counts& counts);
void DirectAllToAll(Exchange& exchange, int64_t index, const at::Tensor& out, const at::Tensor& in,
                    const Counts& out_counts, const Counts& in_counts);
void DirectBroadcast(Exchange& exchange, int64_t index, int64_t size, const at::Tensor& inout,
                     int64_t root);
// Reduces the own part of `in` into `out`, in the order of `nodes`. `all`: `out` and `in` are the
// same whole tensor, of which every rank gets all reduced parts.
void DirectReduce(Exchange& exchange, int64_t index, const Nodes& nodes, const at::Tensor& out,
                  const at::Tensor& in, ReduceOp op, const Counts& counts, bool all);
// One exchange in place of two: every rank adds up all contributions.
void DirectSmallAllReduce(Exchange& exchange, int64_t index, const Nodes& nodes,
                          const at::Tensor& inout, ReduceOp op);

}  // namespace lins
