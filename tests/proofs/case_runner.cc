#include "tests/proofs/case_runner.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "dtensor/execute.h"
#include "placement/redistribution.h"
#include "tests/comm/ranks.h"
#include "tests/proofs/memory_meter.h"
#include "tests/proofs/plain_arrays.h"

namespace lins::testing {
namespace {

constexpr int64_t kBatch = 32;  // cases of each rank in a batch
constexpr size_t kShownFailures = 5;

at::Tensor ToTensor(const std::vector<double>& values, const Shape& shape, at::ScalarType dtype) {
  const std::vector<int64_t> sizes(shape.begin(), shape.end());
  const at::Tensor out = at::empty(sizes, at::kDouble);
  std::copy(values.begin(), values.end(), out.mutable_data_ptr<double>());
  return out.to(dtype);
}

std::vector<double> ToValues(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

// While it lives, an abort on this thread (a contradiction within lins) names the case.
class NamedOnAbort {
 public:
  NamedOnAbort(int64_t ranks, uint64_t seed) {
    std::snprintf(text, sizeof(text), "in case ranks/seed %lld/%llu\n",
                  static_cast<long long>(ranks), static_cast<unsigned long long>(seed));
  }
  ~NamedOnAbort() { text[0] = 0; }
  static void Print(int) {
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
  }

 private:
  static thread_local char text[80];
};
thread_local char NamedOnAbort::text[80] = "";

// A case under way: written by one rank, run by all, checked by one.
struct Slot {
  std::optional<Case> what;
  std::optional<RedistributionPlan> plan;
  std::vector<at::Tensor> in, out;  // by rank
  std::vector<int64_t> received, peak;
  std::vector<int64_t> collectives;

  void Prepare(std::optional<Case> given) {
    plan.reset();
    what = std::move(given);
    if (!what) return;
    const int64_t ranks = what->src.mesh().size();
    const NamedOnAbort named(ranks, what->seed);
    plan = ValueOrThrow(PlanRedistribution(what->src, what->dst, c10::elementSize(what->dtype)));
    in.clear();
    for (int64_t r = 0; r < ranks; ++r) {
      in.push_back(ToTensor(SourceValues(r), what->src.LocalShape(r), what->dtype));
    }
    out.assign(ranks, at::Tensor());
    received.assign(ranks, 0);
    peak.assign(ranks, 0);
    collectives.assign(ranks, 0);
  }

  std::vector<double> SourceValues(int64_t rank) const {
    std::vector<double> values;
    for (int64_t e : Elements(what->src, rank)) {
      values.push_back(Contribution(what->src, rank, e, what->seed));
    }
    return values;
  }

  void Run(const LiveMesh& mesh) {
    if (!plan) return;
    const NamedOnAbort named(mesh.size(), what->seed);
    RankContext& context = mesh.world().context();
    const int64_t rank = mesh.rank();
    const int trace = context.StartTrace();
    {
      const MemoryMeter meter;
      out[rank] = Execute(*plan, in[rank], mesh);
      peak[rank] = meter.peak() + static_cast<int64_t>(in[rank].nbytes());
    }
    for (const TraceRecord& record : context.Trace(trace)) {
      received[rank] += record.recv_bytes;
      ++collectives[rank];
    }
    context.StopTrace(trace);
  }

  // What went wrong, or nothing.
  std::string Check() const {
    const Layout &src = what->src, &dst = what->dst;
    const int64_t ranks = src.mesh().size();
    for (int64_t r = 0; r < ranks; ++r) {
      if (ToValues(in[r]) != SourceValues(r)) return absl::StrCat("rank ", r, "'s input changed");
    }
    std::vector<std::vector<double>> values;
    for (const at::Tensor& t : out) values.push_back(ToValues(t));
    for (int64_t r = 0; r < ranks; ++r) {
      const std::vector<int64_t> held = Elements(dst, r);
      const Shape shape(out[r].sizes().begin(), out[r].sizes().end());
      if (shape != dst.LocalShape(r) || held.size() != values[r].size()) {
        return absl::StrCat("rank ", r, " ends with shape ", ShapeToString(shape));
      }
    }
    std::vector<double> whole;
    for (int64_t e = 0; e < src.numel(); ++e) {
      whole.push_back(
          Together(src, 0, [&](int64_t peer) { return Contribution(src, peer, e, what->seed); }));
    }
    for (int64_t r = 0; r < ranks; ++r) {
      const std::vector<int64_t> held = Elements(dst, r);
      for (size_t i = 0; i < held.size(); ++i) {
        const double got = Together(dst, r, [&](int64_t peer) { return values[peer][i]; });
        if (got != whole[held[i]]) {
          return absl::StrCat("element ", held[i], " on rank ", r, " is ", got, ", not ",
                              whole[held[i]]);
        }
      }
    }
    return CheckVolumes();
  }

  std::string CheckVolumes() const {
    int64_t worst = 0;
    for (size_t r = 0; r < out.size(); ++r) {
      if (const int64_t live = LiveBytes(*plan, r); peak[r] > live) {
        return absl::StrCat("rank ", r, " had ", peak[r], " bytes alive, the plan says ", live);
      }
      int64_t planned = 0;
      for (const Step& s : plan->steps) planned += RecvBytes(s, r, plan->itemsize);
      worst = std::max(worst, received[r]);
      if (received[r] != planned) {
        return absl::StrCat("rank ", r, " received ", received[r], " bytes, the plan says ",
                            planned);
      }
    }
    if (worst != plan->recv_bytes) return absl::StrCat("the worst rank received ", worst);
    return "";
  }
};

}  // namespace

Tally RunCases(int64_t ranks, int64_t count,
               const std::function<std::optional<Case>(int64_t)>& make) {
  const MemoryMeter install;
  std::signal(SIGABRT, &NamedOnAbort::Print);
  const auto worlds = World::Threads(ranks, 30.0);
  std::vector<Slot> slots(kBatch * ranks);
  std::atomic<bool> failed = false;
  bool stop = false;  // the same for all ranks from one barrier to the next
  std::barrier barrier(ranks, [&]() noexcept { stop = failed; });
  std::mutex mutex;
  Tally tally;
  const auto fail = [&](const Slot& slot, absl::string_view why) {
    std::lock_guard lock(mutex);
    failed = true;
    if (tally.failures.size() == kShownFailures) return;
    std::string& text = tally.failures.emplace_back(why);
    if (!slot.what) return;
    absl::StrAppend(&text, ": seed ", slot.what->seed, ", ", slot.what->src.ToString(), " -> ",
                    Describe(slot.what->dst));
    if (slot.plan) absl::StrAppend(&text, "\n", slot.plan->ToString());
  };
  RunRanks(ranks, [&](int64_t rank) {
    RankContext::Scope scope(worlds[rank]->context_ptr());
    std::map<std::string, LiveMesh> meshes;
    // fn of every slot of the batch, or of those this rank is in charge of.
    const auto each = [&](int64_t begin, int64_t first, int64_t by, const auto& fn) {
      for (int64_t i = first; i < static_cast<int64_t>(slots.size()) && begin + i < count;
           i += by) {
        try {
          fn(slots[i], begin + i);
        } catch (const std::exception& e) {
          fail(slots[i], e.what());
          worlds[0]->Abort(e.what());
          return;
        }
      }
    };
    for (int64_t begin = 0; begin < count && !stop; begin += static_cast<int64_t>(slots.size())) {
      each(begin, rank, ranks, [&](Slot& slot, int64_t i) { slot.Prepare(make(i)); });
      barrier.arrive_and_wait();
      if (!stop) {
        each(begin, 0, 1, [&](Slot& slot, int64_t) {
          if (!slot.plan) return;
          const Mesh& mesh = slot.what->src.mesh();
          auto it = meshes.find(mesh.ToString());
          if (it == meshes.end()) {
            LiveMesh live = LiveMesh::Create(worlds[rank], mesh.shape(), mesh.axes());
            it = meshes.emplace(mesh.ToString(), std::move(live)).first;
          }
          slot.Run(it->second);
        });
      }
      barrier.arrive_and_wait();
      if (!stop) {
        Tally own;
        each(begin, rank, ranks, [&](Slot& slot, int64_t) {
          if (!slot.plan) return;
          ++own.cases;
          own.steps += static_cast<int64_t>(slot.plan->steps.size());
          for (size_t r = 0; r < slot.received.size(); ++r) {
            own.recv_bytes += slot.received[r];
            own.collectives += slot.collectives[r];
          }
          if (const std::string why = slot.Check(); !why.empty()) fail(slot, why);
        });
        std::lock_guard lock(mutex);
        tally.cases += own.cases;
        tally.steps += own.steps;
        tally.collectives += own.collectives;
        tally.recv_bytes += own.recv_bytes;
      }
      barrier.arrive_and_wait();
    }
  });
  return tally;
}

}  // namespace lins::testing
