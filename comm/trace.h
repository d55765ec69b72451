// What one rank knows while it runs: who records its collectives, and what tests inject into them.
//
// Each rank has one RankContext: the process' own, or, where ranks are threads, the thread's. A
// World takes the context current at its creation and every communicator of that world reports to
// it, from whatever thread carries the operation out.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lins {

// One logical step, whatever messages carry it out.
struct TraceRecord {
  // all_gather, reduce_scatter, all_reduce, all_to_all, permute, broadcast, exchange
  std::string op{};
  std::string role{};            // gather, reduce, update, other
  std::string unit{};            // module name, or ""
  std::string axes{};            // in the notation, or ""
  std::vector<int64_t> group{};  // ranks
  int64_t bytes = 0;       // all_gather: the gathered bytes; reduce_scatter: the unreduced bytes;
                           // all_reduce: the buffer; broadcast: the message; all_to_all: the input
  int64_t recv_bytes = 0;  // what this rank must receive: see Communicator
  double start = 0, end = 0;  // seconds of a monotonic clock; end = 0 while in flight
  int64_t sequence = 0;       // number of the operation within its communicator, from 0
  int64_t rank = 0;
  int64_t issue = 0;  // IssueNumber
};

// Matches operations for injection; empty strings match everything.
struct OpFilter {
  std::string op{}, unit{}, role{};
};

class RankContext {
 public:
  // The calling thread's context: the process' own unless a Scope says otherwise.
  static std::shared_ptr<RankContext> Current();
  // Makes `context` the current one of this thread while the Scope lives.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<RankContext> context);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    std::shared_ptr<RankContext> previous_;
  };

  // Recording: records of every operation begun between StartTrace and StopTrace(id). Nestable.
  int StartTrace();
  // So far, in the order in which the rank's own thread asked for them: the same on all ranks.
  std::vector<TraceRecord> Trace(int id) const;
  void StopTrace(int id);

  // Injection, for tests. A delay holds the operation back without holding up its caller; a failure
  // makes it raise. Both apply to operations begun later; Remove(id) ends either.
  int AddDelay(OpFilter filter, double seconds);
  int AddFailure(OpFilter filter, std::string message);
  void Remove(int id);

  // From now on, and until Remove(id), beginning a collective throws an Error that ends in
  // where(): the place in the user's program.
  int Forbid(std::function<std::string()> where);

  // What works for this rank beside its own thread (the streams of a sharded model).
  struct Executor {
    std::function<void()> wait;     // returns once all that was handed over so far has run
    std::function<void()> compare;  // compares what it has noted while verifying; collective
  };
  int AddExecutor(Executor executor);  // until Remove(id)
  // Waits for all executors: before reading a trace, for operations that were asked for but have
  // not begun.
  void Quiesce() const;
  // Verification: executors compare what must be equal among ranks. Every rank starts and stops it;
  // FinishVerifying lets the executors compare what is left. Nestable.
  void StartVerifying() { ++verifying_; }
  void StopVerifying() { --verifying_; }
  void FinishVerifying();
  bool verifying() const { return verifying_ > 0; }

  // Used by Communicator.
  bool Watched() const { return watched_; }                // anything to record, inject or forbid
  std::shared_ptr<TraceRecord> Begin(TraceRecord record);  // null when nobody traces
  void End(const std::shared_ptr<TraceRecord>& record);
  double Delay(const TraceRecord& op) const;         // seconds to hold back
  std::string Failure(const TraceRecord& op) const;  // "" = none
  void CheckAllowed(const TraceRecord& op) const;    // throws while collectives are forbidden

 private:
  struct Injection {
    int id;
    OpFilter filter;
    double seconds;
    std::string failure;
  };
  void Update();  // watched_, under the mutex
  std::vector<Executor> Executors() const;

  mutable std::mutex mutex_;
  std::atomic<bool> watched_ = false;
  int next_id_ = 0;
  std::vector<std::pair<int, std::vector<std::shared_ptr<TraceRecord>>>> traces_;
  std::vector<Injection> injections_;
  std::vector<std::pair<int, std::function<std::string()>>> forbidden_;
  std::vector<std::pair<int, Executor>> executors_;
  std::atomic<int> verifying_ = 0;
};

double MonotonicSeconds();

}  // namespace lins
