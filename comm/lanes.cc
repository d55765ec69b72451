#include "comm/lanes.h"

#include <algorithm>
#include <utility>

namespace lins {

std::vector<Event> Lanes::Run(std::vector<Stage> stages) {
  std::vector<Event> out;
  const bool communicates =
      std::any_of(stages.begin(), stages.end(), [](const Stage& s) { return !s.group.empty(); });
  Event last;
  for (size_t at = 0; at < stages.size();) {
    // A stage that communicates, with those before and after it that do not.
    std::vector<std::function<void()>> tasks;
    const std::vector<int64_t>* group = nullptr;
    size_t end = at;
    for (; end < stages.size() && (stages[end].group.empty() || group == nullptr); ++end) {
      if (!stages[end].group.empty()) group = &stages[end].group;
      tasks.push_back(std::move(stages[end].run));
    }
    Stream* stream = &here_;
    if (concurrent_ && communicates) {
      std::lock_guard lock(mutex_);
      std::unique_ptr<Stream>& own = streams_[*group];
      if (!own) own = std::make_unique<Stream>(true, queue_, name_);
      stream = own.get();
    }
    last = stream->Run([before = last, tasks = std::move(tasks)] {
      before.Wait();
      for (const auto& task : tasks) task();
    });
    out.resize(end, last);
    at = end;
  }
  return out;
}

void Lanes::Drain() {
  std::vector<Stream*> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [group, stream] : streams_) all.push_back(stream.get());
  }
  for (Stream* stream : all) stream->Drain();
}

void Lanes::Reset() {
  here_.Reset();
  std::lock_guard lock(mutex_);
  for (const auto& [group, stream] : streams_) stream->Drain();
  for (const auto& [group, stream] : streams_) stream->Reset();
}

}  // namespace lins
