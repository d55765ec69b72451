// Every collective against formulas, for one communicator: shared by the tests of all transports.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "comm/communicator.h"

namespace lins::testing {

// Element i of rank r's contribution: small whole numbers, exact in every type, sums included.
at::Tensor Contribution(int64_t rank, int64_t n, at::ScalarType dtype);

// All collectives with n elements per rank, even and uneven, in and out of place.
void SweepCollectives(Communicator& c, int64_t n, at::ScalarType dtype);

void SweepAllGather(Communicator& c, int64_t n, at::ScalarType dtype);
void SweepReduceScatter(Communicator& c, int64_t n, at::ScalarType dtype);
void SweepAllReduce(Communicator& c, int64_t n, at::ScalarType dtype);
void SweepAllToAll(Communicator& c, int64_t n, at::ScalarType dtype);
void SweepBroadcast(Communicator& c, int64_t n, at::ScalarType dtype);

}  // namespace lins::testing
