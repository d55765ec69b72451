// A device made of nothing, on which lins' streams run as on CUDA: the host runs ahead inline, and
// what is queued is ordered by streams and events alone. It computes nothing (tensors stay in host
// memory, and are complete when the host gets there); it keeps a vector clock for each stream and
// reports any two uses of the same memory, one of them a write, that no wait has put in order.
//
//   SimulatedDevice device;             // from here on streams are simulated ones
//   ...                                 // ranks as threads; each has streams and memory of its own
//   EXPECT_EQ(device.Text(), "");
//
// Memory behaves as that of a device's caching allocator: it belongs to the stream that allocates
// it, which may use it again as soon as the host has freed it. So it is a problem when it is freed
// before that stream comes after all uses. `drop` makes it forget waits, to see that they are
// missed.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/order_checker.h"

namespace lins::testing {

class SimulatedDevice final : public OrderChecker {
 public:
  using Clock = std::map<int64_t, int64_t>;  // by stream: how much of it has been done

  SimulatedDevice() {
    Guard::Register();
    Memory::Register();
    active_ = this;
    order_checker = this;
  }
  ~SimulatedDevice() override {
    order_checker = nullptr;
    active_ = nullptr;
  }

  // By the names of the streams: whether the second's wait for an event of the first is forgotten.
  // Names: compute (every thread's own), gather, reduce, update, other, memory, nccl.
  std::function<bool(const std::string& from, const std::string& to)> drop;

  std::vector<std::string> problems() const {
    std::lock_guard lock(mutex_);
    return {problems_.begin(), problems_.end()};
  }
  // The same, a line each.
  std::string Text() const { return absl::StrJoin(problems(), "\n"); }
  int64_t uses() const { return uses_; }
  // Whether some use `what` of a unit on one rank or another began without waiting for any such use
  // of the other unit that came before it on the host.
  bool Overlapped(const std::string& what, const std::string& unit, const std::string& earlier_what,
                  const std::string& earlier_unit) const {
    std::lock_guard lock(mutex_);
    for (const auto& [id, rank] : ranks_) {
      for (size_t i = 0; i < rank.log.size(); ++i) {
        if (rank.log[i].what != what || rank.log[i].unit != unit) continue;
        for (size_t j = 0; j < i; ++j) {
          const Entry& e = rank.log[j];
          if (e.what == earlier_what && e.unit == earlier_unit && !Before(e, rank.log[i].clock)) {
            return true;
          }
        }
      }
    }
    return false;
  }

  // --- OrderChecker
  c10::Device queue() const override { return Place(); }
  void Name(int64_t stream, const std::string& name) override {
    std::lock_guard lock(mutex_);
    streams_[stream].name = name;
  }
  void Announce(absl::string_view op, absl::string_view role, const std::string& unit) override {
    announced_ = {absl::StrCat(op, " (", role, ")"), unit};
  }
  void Note(Use use, const void* data, size_t bytes, absl::string_view what,
            const std::string& unit) override {
    std::lock_guard lock(mutex_);
    ++uses_;
    const int64_t stream = Current();
    const auto begin = reinterpret_cast<uintptr_t>(data);
    Add({begin, begin + bytes, stream, Now(stream)[stream], use == Use::kWrite, std::string(what),
         unit, Now(stream)});
  }

  // Of the calling thread's current stream.
  std::string CurrentName() {
    std::lock_guard lock(mutex_);
    return At(Current()).name;
  }
  // What the calling thread has announced last.
  static const std::pair<std::string, std::string>& announced() { return announced_; }
  static SimulatedDevice* active() { return active_; }

 private:
  struct Entry {
    uintptr_t begin, end;
    int64_t stream, time;
    bool write;
    std::string what, unit;
    Clock clock;
  };
  struct StreamState {
    std::string name = "compute";
    int64_t rank = 0;  // the thread's that took it
    Clock clock;
  };
  struct RankState {
    Clock host;               // what the host has waited for
    std::vector<Entry> used;  // of memory
    std::vector<Entry> log;   // all of it
  };
  struct EventState {
    int64_t stream;
    Clock clock;
  };

  static c10::Device Place() { return {c10::DeviceType::PrivateUse1, 0}; }
  static int64_t NewStream() { return next_stream_++; }
  // The calling thread's own stream is also the name of its rank.
  static int64_t Rank() {
    if (own_ == 0) own_ = NewStream();
    return own_;
  }
  static int64_t Current() { return current_ != 0 ? current_ : Rank(); }

  static void Merge(Clock& into, const Clock& from) {
    for (const auto& [stream, time] : from) {
      int64_t& mine = into[stream];
      mine = std::max(mine, time);
    }
  }
  static bool Before(const Entry& e, const Clock& clock) {
    const auto it = clock.find(e.stream);
    return it != clock.end() && it->second >= e.time;
  }

  // The mutex is held in all that follow. A stream's time is that of what is queued next.
  StreamState& At(int64_t stream) {
    StreamState& s = streams_[stream];
    if (s.rank == 0) s.rank = Rank();
    s.clock.try_emplace(stream, 1);
    return s;
  }
  Clock& Now(int64_t stream) {
    StreamState& s = At(stream);
    Merge(s.clock, ranks_[s.rank].host);
    return s.clock;
  }
  std::string Say(const Entry& e) {
    return absl::StrCat(e.write ? "write" : "read", " by '", e.what, "' of unit '", e.unit,
                        "' on stream ", At(e.stream).name);
  }
  void Add(Entry e) {
    RankState& rank = ranks_[At(e.stream).rank];
    auto& used = rank.used;
    for (const Entry& old : used) {
      if (old.end <= e.begin || e.end <= old.begin || !(old.write || e.write)) continue;
      if (old.stream == e.stream || Before(old, e.clock)) continue;
      problems_.insert(absl::StrCat(Say(e), " does not wait for ", Say(old)));
    }
    std::erase_if(used, [&](const Entry& old) {
      return e.begin <= old.begin && old.end <= e.end && (e.write || !old.write) &&
             (old.stream == e.stream || (e.write && Before(old, e.clock)));
    });
    if (!e.what.empty()) rank.log.push_back(e);
    used.push_back(std::move(e));
  }

  void Allocate(void* data, size_t bytes, int64_t stream) {
    std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    std::erase_if(ranks_[At(stream).rank].used,
                  [&](const Entry& e) { return begin <= e.begin && e.end <= begin + bytes; });
    Add({begin, begin + bytes, stream, Now(stream)[stream], true, "allocation", "", Now(stream)});
  }
  void Free(void* data, size_t bytes, int64_t stream) {
    std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const Clock& now = Now(stream);
    auto& used = ranks_[At(stream).rank].used;
    std::erase_if(used, [&](const Entry& e) {
      if (e.end <= begin || begin + bytes <= e.begin) return false;
      if (e.stream != stream && !Before(e, now)) {
        problems_.insert(absl::StrCat("memory of stream ", At(stream).name,
                                      " is freed without a wait for ", Say(e)));
      }
      return true;
    });
  }

  // c10's interface of a device.
  struct Guard final : c10::impl::DeviceGuardImplInterface {
    static void Register() {
      static const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::PrivateUse1,
                                                             new Guard());
    }
    static c10::Stream Make(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, Place(), id); }

    c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
    c10::Device exchangeDevice(c10::Device) const override { return Place(); }
    c10::Device getDevice() const override { return Place(); }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 0; }
    c10::Stream getStream(c10::Device) const override { return Make(Current()); }
    c10::Stream getDefaultStream(c10::Device) const override { return Make(Rank()); }
    c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
      const int64_t id = NewStream();
      if (active_ != nullptr) {
        std::lock_guard lock(active_->mutex_);
        active_->At(id).name = "unnamed";
      }
      return Make(id);
    }
    c10::Stream exchangeStream(c10::Stream s) const override {
      const int64_t before = Current();
      current_ = s.id();
      return Make(before);
    }
    void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
                const c10::EventFlag) const override {
      if (*event == nullptr) *event = new EventState();
      if (active_ == nullptr) return;
      std::lock_guard lock(active_->mutex_);
      Clock& now = active_->Now(stream.id());
      *static_cast<EventState*>(*event) = {stream.id(), now};
      ++now[stream.id()];
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
      delete static_cast<EventState*>(event);
    }
    void block(void* event, const c10::Stream& stream) const override {
      if (active_ == nullptr) return;
      std::lock_guard lock(active_->mutex_);
      const auto& e = *static_cast<EventState*>(event);
      StreamState& to = active_->At(stream.id());
      if (active_->drop && active_->drop(active_->At(e.stream).name, to.name)) return;
      Merge(to.clock, e.clock);
    }
    bool queryEvent(void*) const override { return true; }
    void synchronizeEvent(void* event) const override {
      if (active_ == nullptr) return;
      std::lock_guard lock(active_->mutex_);
      Merge(active_->ranks_[Rank()].host, static_cast<EventState*>(event)->clock);
    }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeStream(const c10::Stream& stream) const override {
      if (active_ == nullptr) return;
      std::lock_guard lock(active_->mutex_);
      Clock& now = active_->Now(stream.id());
      Merge(active_->ranks_[Rank()].host, now);
      ++now[stream.id()];
    }
  };

  // The CPU's allocator, with the rules of a device's.
  struct Memory final : c10::Allocator {
    static void Register() {
      static Memory* const memory = [] {
        auto* made = new Memory();
        plain = c10::GetCPUAllocator();
        c10::SetCPUAllocator(made, /*priority=*/100);
        return made;
      }();
      (void)memory;
    }
    struct Block {
      c10::DataPtr data;
      size_t bytes;
      int64_t stream;
      SimulatedDevice* device;
    };
    c10::DataPtr allocate(size_t bytes) override {
      c10::DataPtr data = plain->allocate(bytes);
      // Before its first use of a stream a thread belongs to no rank.
      if (active_ == nullptr || bytes == 0 || own_ == 0) return data;
      void* const p = data.get();
      active_->Allocate(p, bytes, Current());
      std::lock_guard lock(mutex);
      blocks.insert_or_assign(p, Block{std::move(data), bytes, Current(), active_});
      return {p, p, &Release, c10::Device(c10::DeviceType::CPU)};
    }
    static void Release(void* p) {
      std::optional<Block> block;
      {
        std::lock_guard lock(mutex);
        if (const auto it = blocks.find(p); it != blocks.end()) {
          block.emplace(std::move(it->second));
          blocks.erase(it);
        }
      }
      if (!block) return plain->raw_deallocate(p);
      if (block->device == active_) active_->Free(p, block->bytes, block->stream);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &Release; }
    void copy_data(void* to, const void* from, size_t n) const override {
      default_copy_data(to, from, n);
    }
    inline static c10::Allocator* plain = nullptr;
    inline static std::mutex mutex;  // of the map
    inline static std::map<void*, Block> blocks;
  };

  inline static SimulatedDevice* active_ = nullptr;
  inline static std::atomic<int64_t> next_stream_ = 1;
  inline static thread_local int64_t own_ = 0, current_ = 0;
  inline static thread_local std::pair<std::string, std::string> announced_;

  mutable std::mutex mutex_;
  std::map<int64_t, StreamState> streams_;
  std::map<int64_t, RankState> ranks_;
  std::set<std::string> problems_;
  std::atomic<int64_t> uses_ = 0;
};

}  // namespace lins::testing
