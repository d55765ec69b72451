// The shared state behind a Work.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "comm/backend.h"
#include "comm/communicator.h"
#include "comm/trace.h"

namespace lins {

// What all operations of a communicator have in common.
struct GroupFacts {
  std::vector<int64_t> ranks;
  std::string role;
  int64_t rank;  // this one
};

struct Work::State {
  std::mutex mutex;                  // held by the thread that waits
  std::unique_ptr<Pending> pending;  // null once finished (and confirmed)
  bool waited = false;               // finished, but not yet confirmed
  std::string error;                 // complete message; set when finished by a failure

  // What is in flight, for records and messages.
  absl::string_view collective;  // a literal
  OpInfo info;
  std::shared_ptr<const GroupFacts> group;
  int64_t bytes = 0, recv_bytes = 0, sequence = 0;
  double start = 0, timeout = 0;
  bool asynchronous = false;  // the transport
  std::shared_ptr<RankContext> context;
  std::shared_ptr<TraceRecord> record;  // null when nobody traces

  TraceRecord Record() const;
  // Waits, ends the record, and keeps the error if there is one. The mutex is held.
  void Finish();
  // Whether it has run, of one that was waited for. The mutex is held.
  bool Confirm();
  void Fail(const std::string& reason);
};

}  // namespace lins
