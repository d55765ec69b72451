// The steps that can follow a layout on the way to a target: the edges of the planner's graph.
#pragma once

#include <vector>

#include "placement/redistribution.h"

namespace lins {

struct Transition {
  StepKind kind;
  Axes axes;
  Layout after;
};

// Every transition keeps the tensor's value. From any layout some sequence of them reaches the target.
std::vector<Transition> Transitions(const Layout& from, const Layout& target);

// OK when values allow a way from src to dst at all.
absl::Status CheckReachable(const Layout& src, const Layout& dst);

}  // namespace lins
