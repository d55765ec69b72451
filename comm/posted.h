// A transport whose operations begin on a thread of their own.
#pragma once

#include <memory>

#include "comm/backend.h"

namespace lins {

// Gloo's device thread spins while another thread holds the lock of a connection. A caller that has
// been computing is preempted inside send or recv, with the lock, for a whole time slice when cores
// are busy: 3 ms per message. A thread that only posts is not.
std::unique_ptr<Backend> Posted(std::unique_ptr<Backend> backend);

}  // namespace lins
