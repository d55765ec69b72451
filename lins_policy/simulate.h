// A training step as events: one compute stream, and links that serve one collective at a time.
//
// Durations are those that plans are priced with (pricing.h, step_time.h), so a simulation and a
// predicted step differ only in how communication and compute meet. Rules:
//   - compute runs the forwards of all units in order, then their backwards in reverse, M times;
//   - a gather may start when the unit `prefetch` places before it starts to compute, but not while
//     its own unit still computes with what was gathered before; it must be done before its unit
//     computes; in a step's first forward it also waits for the unit's update;
//   - a gradient is reduced after its unit's backward; the optimizer waits for all reductions;
//   - the optimizer's own seconds come after all reductions, with nothing beside them;
//   - updates follow the optimizer, and run beside the next step's forward where they may;
//   - of the collectives that are ready the links take the one that is needed first;
//   - compute runs at 1 / slowdown of its speed while the links are busy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lins_policy/plan.h"

namespace lins {

struct SimulatedUnit {
  std::string name;
  Moments<double> seconds;
  ComputeSeconds compute;
  double optimizer = 0;  // seconds on the unit
};

struct SimulatedEvent {
  std::string unit;
  std::string what;  // forward, backward, optimizer; gather, regather, reduce, update
  int64_t micro_batch = 0;
  double start = 0, end = 0;  // seconds since the step began
  bool on_link = false;
};

struct Simulation {
  double step = 0;                     // seconds from one optimizer to the next, in steady state
  double compute = 0;                  // of it, without anything beside it
  double optimizer = 0;                // of it
  double link_busy = 0;                // of it
  std::vector<SimulatedEvent> events;  // of one step, by start
  double exposed() const { return step - compute - optimizer; }
};

Simulation SimulateStep(const std::vector<SimulatedUnit>& units, int64_t micro_batches,
                        double slowdown, const OverlapOptions& options);

// All copies of all units of a plan.
absl::StatusOr<Simulation> Simulate(const Plan& plan);

// For chrome://tracing and Perfetto.
std::string ToChromeTrace(const Simulation& simulation);

}  // namespace lins
