#include "comm/trace.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/stream.h"
#include "mesh/error.h"

namespace lins {
namespace {

thread_local std::shared_ptr<RankContext> thread_context;

bool Matches(const OpFilter& filter, const TraceRecord& op) {
  return (filter.op.empty() || filter.op == op.op) &&
         (filter.unit.empty() || filter.unit == op.unit) &&
         (filter.role.empty() || filter.role == op.role);
}

}  // namespace

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::shared_ptr<RankContext> RankContext::Current() {
  if (thread_context != nullptr) return thread_context;
  static const auto* const process = new std::shared_ptr<RankContext>(new RankContext);
  return *process;
}

RankContext::Scope::Scope(std::shared_ptr<RankContext> context)
    : previous_(std::exchange(thread_context, std::move(context))) {}

RankContext::Scope::~Scope() { thread_context = std::move(previous_); }

void RankContext::Update() {
  watched_ = !traces_.empty() || !injections_.empty() || !forbidden_.empty();
}

int RankContext::StartTrace() {
  std::lock_guard lock(mutex_);
  watched_ = true;
  traces_.emplace_back(next_id_, std::vector<std::shared_ptr<TraceRecord>>());
  return next_id_++;
}

std::vector<TraceRecord> RankContext::Trace(int id) const {
  std::lock_guard lock(mutex_);
  std::vector<TraceRecord> records;
  for (const auto& [trace_id, trace] : traces_) {
    if (trace_id != id) continue;
    records.reserve(trace.size());
    for (const auto& record : trace) records.push_back(*record);
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const TraceRecord& a, const TraceRecord& b) { return a.issue < b.issue; });
  return records;
}

void RankContext::StopTrace(int id) {
  std::lock_guard lock(mutex_);
  std::erase_if(traces_, [id](const auto& trace) { return trace.first == id; });
  Update();
}

int RankContext::AddDelay(OpFilter filter, double seconds) {
  std::lock_guard lock(mutex_);
  injections_.push_back({next_id_, std::move(filter), seconds, ""});
  Update();
  return next_id_++;
}

int RankContext::AddFailure(OpFilter filter, std::string message) {
  if (message.empty()) message = "injected failure";
  std::lock_guard lock(mutex_);
  injections_.push_back({next_id_, std::move(filter), 0, std::move(message)});
  Update();
  return next_id_++;
}

void RankContext::Remove(int id) {
  std::lock_guard lock(mutex_);
  std::erase_if(injections_, [id](const Injection& injection) { return injection.id == id; });
  std::erase_if(forbidden_, [id](const auto& f) { return f.first == id; });
  std::erase_if(executors_, [id](const auto& e) { return e.first == id; });
  Update();
}

int RankContext::Forbid(std::function<std::string()> where) {
  std::lock_guard lock(mutex_);
  forbidden_.emplace_back(next_id_, std::move(where));
  Update();
  return next_id_++;
}

int RankContext::AddExecutor(Executor executor) {
  std::lock_guard lock(mutex_);
  executors_.emplace_back(next_id_, std::move(executor));
  return next_id_++;
}

std::vector<RankContext::Executor> RankContext::Executors() const {
  std::lock_guard lock(mutex_);
  std::vector<Executor> out;
  for (const auto& [id, executor] : executors_) out.push_back(executor);
  return out;
}

void RankContext::Quiesce() const {
  for (const Executor& e : Executors()) e.wait();
}

void RankContext::FinishVerifying() {
  try {
    for (const Executor& e : Executors()) e.compare();
  } catch (...) {
    StopVerifying();
    throw;
  }
  StopVerifying();
}

void RankContext::CheckAllowed(const TraceRecord& op) const {
  std::function<std::string()> where;
  {
    std::lock_guard lock(mutex_);
    if (forbidden_.empty()) return;
    where = forbidden_.back().second;
  }
  throw Error(
      absl::StrCat(op.op, " of ", op.bytes, " bytes among ranks [", absl::StrJoin(op.group, ", "),
                   "] inside lins.no_communication(), ", "caused by ", where()),
      Error::Kind::kRuntime);
}

std::shared_ptr<TraceRecord> RankContext::Begin(TraceRecord record) {
  std::lock_guard lock(mutex_);
  if (traces_.empty()) return nullptr;
  record.issue = IssueNumber();
  auto shared = std::make_shared<TraceRecord>(std::move(record));
  for (auto& [id, trace] : traces_) trace.push_back(shared);
  return shared;
}

void RankContext::End(const std::shared_ptr<TraceRecord>& record) {
  if (record == nullptr) return;
  std::lock_guard lock(mutex_);
  record->end = MonotonicSeconds();
}

double RankContext::Delay(const TraceRecord& op) const {
  std::lock_guard lock(mutex_);
  double seconds = 0;
  for (const Injection& injection : injections_) {
    if (Matches(injection.filter, op)) seconds += injection.seconds;
  }
  return seconds;
}

std::string RankContext::Failure(const TraceRecord& op) const {
  std::lock_guard lock(mutex_);
  for (const Injection& injection : injections_) {
    if (!injection.failure.empty() && Matches(injection.filter, op)) return injection.failure;
  }
  return "";
}

}  // namespace lins
