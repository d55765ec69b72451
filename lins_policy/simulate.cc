#include "lins_policy/simulate.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "lins_policy/evaluate.h"
#include "mesh/error.h"
#include "nlohmann/json.hpp"

namespace lins {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class StepSimulator {
 public:
  StepSimulator(const std::vector<SimulatedUnit>& units, int64_t micro_batches, double slowdown,
                const OverlapOptions& options)
      : units_(units),
        n_(static_cast<int64_t>(units.size())),
        micro_batches_(micro_batches),
        tasks_(2 * n_ * micro_batches),
        slowdown_(slowdown),
        options_(options),
        gathered_(tasks_, 0),
        updated_(n_, 1) {}

  // Two steps: the first one fills the pipeline, the second is the answer.
  Simulation Run() {
    RunStep();
    const double begin = now_;
    result_.events.clear();
    result_.link_busy = 0;
    RunStep();
    result_.step = now_ - begin;
    for (const SimulatedUnit& u : units_) {
      result_.compute +=
          static_cast<double>(micro_batches_) * (u.compute.forward + u.compute.backward);
      result_.optimizer += u.optimizer;
    }
    for (SimulatedEvent& e : result_.events) {
      e.start -= begin;
      e.end -= begin;
    }
    std::stable_sort(
        result_.events.begin(), result_.events.end(),
        [](const SimulatedEvent& a, const SimulatedEvent& b) { return a.start < b.start; });
    return std::move(result_);
  }

 private:
  // Task t of a step: the forward or backward of one unit in one micro-batch.
  int64_t UnitOf(int64_t t) const {
    const int64_t i = t % (2 * n_);
    return i < n_ ? i : 2 * n_ - 1 - i;
  }
  bool IsForward(int64_t t) const { return t % (2 * n_) < n_; }
  int64_t MicroBatchOf(int64_t t) const { return t / (2 * n_); }
  // The task before t that computes with t's unit; -1 for the first.
  int64_t LastUse(int64_t t) const {
    const int64_t i = t % (2 * n_), begin = t - i;
    return i < n_ ? begin - 1 - i : begin + 2 * n_ - 1 - i;
  }

  enum class Kind { kGather, kReduce, kUpdate };
  struct LinkTask {
    int64_t deadline;  // the compute task that needs it; tasks_: the optimizer
    Kind kind;
    int64_t task, unit;
    double seconds;
  };

  double GatherSeconds(int64_t t) const {
    const Moments<double>& s = units_[UnitOf(t)].seconds;
    return IsForward(t) ? s.gather : s.regather;
  }
  double ReduceSeconds(int64_t t) const {
    const Moments<double>& s = units_[UnitOf(t)].seconds;
    return s.scatter + (MicroBatchOf(t) + 1 == micro_batches_ ? s.reduce : s.accumulate);
  }
  double ComputeSecondsOf(int64_t t) const {
    const ComputeSeconds& c = units_[UnitOf(t)].compute;
    return IsForward(t) ? c.forward : c.backward;
  }

  void RunStep() {
    task_ = 0;
    next_gather_ = 0;
    std::fill(gathered_.begin(), gathered_.end(), 0);
    computing_ = false;
    while (task_ < tasks_ || computing_ || link_busy_ || !ready_.empty() || !held_.empty()) {
      // The step ends when computing and its reductions are done; updates may go on.
      if (task_ == tasks_ && !computing_ && !ReductionsLeft()) break;
      IssueGathers();
      while (StartCompute() || StartLink()) IssueGathers();
      Advance();
    }
    Optimizer();
  }

  bool ReductionsLeft() const {
    if (link_busy_ && link_.kind == Kind::kReduce) return true;
    return std::any_of(ready_.begin(), ready_.end(),
                       [](const LinkTask& l) { return l.kind == Kind::kReduce; });
  }

  // A gather is issued when the task `prefetch` places before its own has started, or at once for
  // those at the step's head; it is held back until its unit's update is done, and until the unit
  // has been used and dropped: the last unit's second gather waits for its forward.
  void IssueGathers() {
    const int64_t ahead = options_.overlap ? options_.prefetch : 0;
    const int64_t started = computing_ ? task_ : task_ - 1;  // the last task that has started
    int64_t limit = std::max<int64_t>(started + ahead, 0);
    if (!computing_) limit = std::max(limit, task_);
    for (; next_gather_ < tasks_ && next_gather_ <= limit; ++next_gather_) {
      const int64_t t = next_gather_;
      if (GatherSeconds(t) == 0) {
        gathered_[t] = 1;
      } else {
        held_.push_back({t, Kind::kGather, t, UnitOf(t), GatherSeconds(t)});
      }
    }
    for (size_t i = 0; i < held_.size();) {
      if (updated_[held_[i].unit] && LastUse(held_[i].task) < task_) {
        ready_.push_back(held_[i]);
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  bool StartCompute() {
    if (computing_ || task_ == tasks_ || !gathered_[task_] || !updated_[UnitOf(task_)]) {
      return false;
    }
    if (!options_.overlap && (link_busy_ || !ready_.empty())) return false;
    if (!options_.overlap_update && !AllUpdated()) return false;
    computing_ = true;
    work_left_ = ComputeSecondsOf(task_);
    compute_start_ = now_;
    return true;
  }

  bool AllUpdated() const {
    return std::all_of(updated_.begin(), updated_.end(), [](char u) { return u != 0; });
  }

  bool StartLink() {
    if (link_busy_ || ready_.empty()) return false;
    if (!options_.overlap && computing_) return false;
    const auto first = std::min_element(
        ready_.begin(), ready_.end(),
        [](const LinkTask& a, const LinkTask& b) { return a.deadline < b.deadline; });
    link_ = *first;
    ready_.erase(first);
    link_busy_ = true;
    link_start_ = now_;
    link_end_ = now_ + link_.seconds;
    return true;
  }

  void Advance() {
    const double rate = link_busy_ ? 1 / slowdown_ : 1;
    const double compute_end = computing_ ? now_ + work_left_ / rate : kNever;
    const double link_end = link_busy_ ? link_end_ : kNever;
    LINS_CHECK(compute_end < kNever || link_end < kNever, "a simulated step stands still at task ",
               task_, " of ", tasks_);
    const double next = std::min(compute_end, link_end);
    if (computing_) work_left_ -= (next - now_) * rate;
    now_ = next;
    if (compute_end <= next) EndCompute();
    if (link_end <= next) EndLink();
  }

  void EndCompute() {
    computing_ = false;
    const int64_t t = task_++;
    if (ComputeSecondsOf(t) > 0) {
      result_.events.push_back({units_[UnitOf(t)].name, IsForward(t) ? "forward" : "backward",
                                MicroBatchOf(t), compute_start_, now_, false});
    }
    if (!IsForward(t) && ReduceSeconds(t) > 0) {
      ready_.push_back({tasks_, Kind::kReduce, t, UnitOf(t), ReduceSeconds(t)});
    }
  }

  void EndLink() {
    link_busy_ = false;
    result_.link_busy += link_.seconds;
    const char* what = link_.kind == Kind::kReduce   ? "reduce"
                       : link_.kind == Kind::kUpdate ? "update"
                       : IsForward(link_.task)       ? "gather"
                                                     : "regather";
    result_.events.push_back({units_[link_.unit].name, what,
                              link_.kind == Kind::kUpdate ? 0 : MicroBatchOf(link_.task),
                              link_start_, now_, true});
    if (link_.kind == Kind::kGather) gathered_[link_.task] = 1;
    if (link_.kind == Kind::kUpdate) updated_[link_.unit] = 1;
  }

  void Optimizer() {
    for (const SimulatedUnit& u : units_) {
      if (u.optimizer <= 0) continue;
      result_.events.push_back(
          {u.name, "optimizer", micro_batches_ - 1, now_, now_ + u.optimizer, false});
      now_ += u.optimizer;
    }
    for (int64_t i = 0; i < n_; ++i) {
      const double seconds = units_[i].seconds.update;
      updated_[i] = seconds == 0;
      if (seconds > 0) ready_.push_back({i, Kind::kUpdate, 0, i, seconds});
    }
  }

  const std::vector<SimulatedUnit>& units_;
  const int64_t n_, micro_batches_, tasks_;
  const double slowdown_;
  const OverlapOptions options_;

  double now_ = 0;
  int64_t task_ = 0;  // the one that computes, or comes next
  bool computing_ = false;
  double work_left_ = 0, compute_start_ = 0;
  bool link_busy_ = false;
  LinkTask link_{};
  double link_start_ = 0, link_end_ = 0;
  std::vector<LinkTask> ready_, held_;
  int64_t next_gather_ = 0;
  std::vector<char> gathered_, updated_;
  Simulation result_;
};

}  // namespace

Simulation SimulateStep(const std::vector<SimulatedUnit>& units, int64_t micro_batches,
                        double slowdown, const OverlapOptions& options) {
  return StepSimulator(units, micro_batches, slowdown, options).Run();
}

absl::StatusOr<Simulation> Simulate(const Plan& plan) {
  LINS_ASSIGN_OR_RETURN(Evaluator evaluator,
                        Evaluator::Create(plan.spec, plan.cluster, plan.settings));
  LINS_ASSIGN_OR_RETURN(const std::vector<Moments<double>> seconds,
                        evaluator.Seconds(plan.policies));
  std::vector<SimulatedUnit> units;
  for (size_t i = 0; i < plan.share.units.size(); ++i) {
    const Unit& u = plan.share.units[i];
    const ComputeSeconds compute =
        ComputeOf(u, plan.share.training.recompute, plan.cluster.flops());
    const double optimizer = evaluator.Update(i, plan.policies[i]).longer();
    for (int64_t copy = 0; copy < u.repeat; ++copy) {
      units.push_back({u.repeat > 1 ? absl::StrCat(u.name, ".", copy) : u.name, seconds[i], compute,
                       optimizer});
    }
  }
  return SimulateStep(units, plan.settings.micro_batches, plan.cluster.overlap_slowdown(),
                      plan.settings.overlap);
}

std::string ToChromeTrace(const Simulation& simulation) {
  nlohmann::json events = nlohmann::json::array();
  for (const SimulatedEvent& e : simulation.events) {
    events.push_back({{"name", absl::StrCat(e.what, " ", e.unit)},
                      {"cat", e.what},
                      {"ph", "X"},
                      {"ts", e.start * 1e6},
                      {"dur", (e.end - e.start) * 1e6},
                      {"pid", 0},
                      {"tid", e.on_link ? "links" : "compute"},
                      {"args", {{"micro_batch", e.micro_batch}}}});
  }
  return nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace lins
