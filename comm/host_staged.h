// Transport of device memory by way of the host: copies what a rank gives, lets a transport of host
// memory carry the operation out, and copies the result back. Slow, and right on any device: for
// ranks that share one, as threads, and for tests.
#pragma once

#include <memory>

#include "comm/backend.h"

namespace lins {

// Each operation waits, on the host, for what the current stream has before it; the current stream
// of whoever calls Wait has the result.
std::unique_ptr<Backend> StageThroughHost(std::unique_ptr<Backend> host, c10::DeviceType device);

}  // namespace lins
