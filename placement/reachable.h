// Which redistributions values allow at all.
#pragma once

#include "placement/layout.h"

namespace lins {

// OK when there is a way from src to dst; otherwise an error that names both and says why.
absl::Status CheckReachable(const Layout& src, const Layout& dst);

}  // namespace lins
