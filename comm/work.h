// The shared state behind a Work.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "comm/backend.h"
#include "comm/communicator.h"
#include "comm/trace.h"

namespace lins {

struct Work::State {
  std::mutex mutex;                  // held by the thread that waits
  std::unique_ptr<Pending> pending;  // null once finished
  std::string error;                 // complete message; set when finished by a failure

  TraceRecord op;  // what is in flight, for messages
  double timeout = 0;
  std::shared_ptr<RankContext> context;
  std::shared_ptr<TraceRecord> record;  // null when nobody traces

  // Waits, ends the record, and keeps the error if there is one. The mutex is held.
  void Finish();
  void Fail(const std::string& reason);
};

}  // namespace lins
