#include "runtime/measure.h"

#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "comm/stream.h"
#include "comm/trace.h"
#include "mesh/error.h"

namespace lins {
namespace {

constexpr double kSampleSeconds = 1e-3;  // a sample of a short operation lasts about as long
constexpr int64_t kMostRepeats = 32;     // within one sample
constexpr int64_t kMostPerRound = 16;    // samples between two agreements

c10::Device DeviceOf(const LiveMesh& mesh) {
  return c10::impl::VirtualGuardImpl(mesh.world().device()).getDevice();
}

// Waits for what the calling thread has queued on a device.
void Synchronize(const c10::Device& device) {
  if (!device.is_cpu()) CurrentStream(device).synchronize();
}

// The largest of every rank's values, entry by entry.
std::vector<double> Slowest(const LiveMesh& mesh, std::vector<double> values) {
  if (mesh.size() == 1) return values;
  const at::Tensor mine = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), mine.mutable_data_ptr<double>());
  const at::Tensor all = mine.to(DeviceOf(mesh));
  mesh.world().Everyone(Role::kOther).AllReduce(all, ReduceOp::kMax).Wait();
  const at::Tensor out = all.cpu();
  return {out.const_data_ptr<double>(), out.const_data_ptr<double>() + values.size()};
}

void Barrier(const LiveMesh& mesh) {
  if (mesh.size() > 1) mesh.world().Everyone(Role::kOther).Barrier().Wait();
}

// Runs fn; when it throws on any rank every rank throws.
template <typename Fn>
auto OnAllRanks(const LiveMesh& mesh, const std::string& what, Fn&& fn) {
  const std::string ready = "all that it needs";
  std::string said = ready;
  decltype(fn()) result;
  try {
    result = fn();
  } catch (const std::exception& e) {
    said = absl::StrCat("an error: ", e.what());
    said.resize(std::min(said.size(), said.find('\n')));  // without torch's stack
  }
  mesh.world().CheckAgreement(what, said);
  if (said != ready) throw Error(absl::StrCat(what, ": ", said), Error::Kind::kRuntime);
  return result;
}

// The calling thread's operation with the tensors it needs, ready to be repeated.
std::function<void()> Prepare(const LiveMesh& mesh, StepKind op, const Axes& axes, int64_t bytes,
                              c10::ScalarType dtype) {
  const int64_t ranks = Mesh::GroupSize(axes);
  const int64_t itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t part = (bytes + ranks * itemsize - 1) / (ranks * itemsize);
  const auto options = at::TensorOptions().dtype(dtype).device(DeviceOf(mesh));
  const at::Tensor whole = at::zeros({part * ranks}, options).fill_(1);  // its pages are there
  const auto other = [&](int64_t n) { return at::zeros({n}, options).fill_(1); };
  Communicator& comm = mesh.Comm(axes, Role::kGather);
  const OpInfo info{"", mesh.AxesToString(axes), std::string(StepKindName(op))};
  switch (op) {
    case StepKind::kAllGather:
      return [=, &comm, in = other(part)] { comm.AllGather(whole, in, {}, info).Wait(); };
    case StepKind::kReduceScatter:
      return [=, &comm, out = other(part)] {
        comm.ReduceScatter(out, whole, ReduceOp::kSum, {}, info).Wait();
      };
    case StepKind::kAllReduce:  // a maximum: sums of sums would overflow
      return [=, &comm] { comm.AllReduce(whole, ReduceOp::kMax, info).Wait(); };
    case StepKind::kAllToAll:
      return
          [=, &comm, out = other(part * ranks)] { comm.AllToAll(out, whole, {}, {}, info).Wait(); };
    case StepKind::kBroadcast:
      return [=, &comm] { comm.Broadcast(whole, 0, info).Wait(); };
    default:
      throw Error(absl::StrCat("no profile times ", StepKindName(op),
                               ": legal are all_gather, reduce_scatter, all_reduce, broadcast and "
                               "all_to_all"));
  }
}

Axes GroupAxes(const LiveMesh& mesh, int64_t gpus, int64_t nodes) {
  const int last = mesh.ndim() - 1;
  Axes axes = {{last, gpus, 1}};
  if (last == 1) axes.insert(axes.begin(), {0, nodes, 1});
  if (last > 1 || gpus < 1 || nodes < 1 || gpus * nodes < 2 || (last == 0 && nodes > 1) ||
      !mesh.Validate(axes).ok()) {
    throw Error(absl::StrCat(
        "groups of ", gpus, "x", nodes, " (GPUs per node x nodes) on ", mesh.ToString(),
        ": legal are two axes, nodes and GPUs of a node, divisors of both, and "
        "more than one rank"));
  }
  return WithoutSingles(axes);
}

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  return n % 2 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

ProfilePoint Summary(int64_t bytes, std::vector<double> samples) {
  ProfilePoint p;
  p.bytes = bytes;
  p.samples = static_cast<int64_t>(samples.size());
  p.median = Median(samples);
  std::sort(samples.begin(), samples.end());
  p.p95 = samples[std::ceil(0.95 * samples.size()) - 1];
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / samples.size();
  double squares = 0;
  for (double s : samples) squares += (s - mean) * (s - mean);
  p.stddev = std::sqrt(squares / samples.size());
  p.p95 = std::max(p.p95, p.median);
  return p;
}

// `count` samples on this rank, each of `repeats` calls that all ranks begin together.
std::vector<double> Samples(const LiveMesh& mesh, const std::function<void()>& run, int64_t count,
                            int64_t repeats) {
  const c10::Device device = DeviceOf(mesh);
  std::vector<double> out;
  for (int64_t i = 0; i < count; ++i) {
    Barrier(mesh);
    const double begin = MonotonicSeconds();
    for (int64_t k = 0; k < repeats; ++k) run();
    Synchronize(device);
    out.push_back((MonotonicSeconds() - begin) / repeats);
  }
  return out;
}

}  // namespace

double MedianUncertainty(std::vector<double> samples) {
  const double n = static_cast<double>(samples.size());
  if (n < 6) return std::numeric_limits<double>::infinity();
  std::sort(samples.begin(), samples.end());
  const double reach = 1.96 * std::sqrt(n) / 2;  // ranks of the interval: n/2 -+ that
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + reach)));
  const double median = Median(samples);
  return std::max(samples[high] - median, median - samples[low]) / median;
}

Measurement MeasureCollective(const LiveMesh& mesh, StepKind op, int64_t gpus, int64_t nodes,
                              int64_t bytes, const MeasureOptions& options) {
  if (bytes < 1) throw Error(absl::StrCat("bytes is ", bytes, ", must be at least 1"));
  const Axes axes = GroupAxes(mesh, gpus, nodes);
  const double begin = MonotonicSeconds();
  const std::string what =
      absl::StrCat("measuring ", StepKindName(op), " of ", bytes, " bytes on ", gpus, "x", nodes);
  const auto run =
      OnAllRanks(mesh, what, [&] { return Prepare(mesh, op, axes, bytes, options.dtype); });

  // The second call is the first that needs nothing made.
  Samples(mesh, run, 1, 1);
  std::vector<double> agreed =
      Slowest(mesh, {Samples(mesh, run, 1, 1)[0], MonotonicSeconds() - begin});
  const int64_t repeats = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(kSampleSeconds / std::max(agreed[0], 1e-7))), 1, kMostRepeats);
  Measurement out;
  std::vector<double> samples;
  while (true) {
    // As many as the budget has room for, by what one takes.
    const double left = options.budget_seconds - agreed.back();
    const auto room = static_cast<int64_t>(left / std::max(agreed[0] * repeats, 1e-7));
    const int64_t count =
        std::clamp<int64_t>(room, 1, std::min(kMostPerRound, options.max_samples));
    std::vector<double> mine = Samples(mesh, run, count, repeats);
    mine.push_back(MonotonicSeconds() - begin);
    agreed = Slowest(mesh, std::move(mine));
    out.elapsed = agreed.back();
    samples.insert(samples.end(), agreed.begin(), agreed.end() - 1);
    const auto taken = static_cast<int64_t>(samples.size());
    out.stable = taken >= options.min_samples && MedianUncertainty(samples) <= options.tolerance;
    if (out.stable || taken >= options.max_samples || out.elapsed >= options.budget_seconds) break;
  }
  out.point = Summary(bytes, std::move(samples));
  return out;
}

ComputeProfile MeasureCompute(const LiveMesh& mesh, const MeasureOptions& options) {
  const c10::Device device = DeviceOf(mesh);
  const int64_t n = device.is_cpu() ? 384 : 4096;
  constexpr int64_t kInFlight = 4;
  const int64_t elements = device.is_cpu() ? 1 << 21 : 1 << 26;
  struct Tensors {
    at::Tensor a, b, c, part;
    std::vector<at::Tensor> wholes;
  };
  const auto t = OnAllRanks(mesh, "measuring compute", [&] {
    const auto of = at::TensorOptions().dtype(options.dtype).device(device);
    Tensors t{at::ones({n, n}, of), at::ones({n, n}, of), at::ones({n, n}, of), {}, {}};
    const int64_t part = elements / mesh.size();
    t.part = at::ones({part}, of);
    for (int64_t i = 0; i < kInFlight; ++i) t.wholes.push_back(at::ones({part * mesh.size()}, of));
    return t;
  });
  const auto multiply = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) at::mm_out(const_cast<at::Tensor&>(t.c), t.a, t.b);
    Synchronize(device);
  };
  const auto seconds = [](const std::function<void()>& fn) {
    const double begin = MonotonicSeconds();
    fn();
    return MonotonicSeconds() - begin;
  };
  const auto gathers = [&] {
    std::vector<Work> works;
    if (mesh.size() == 1) return works;
    Communicator& comm = mesh.world().Everyone(Role::kGather);
    for (const at::Tensor& whole : t.wholes) works.push_back(comm.AllGather(whole, t.part));
    return works;
  };
  const auto wait = [&](std::vector<Work> works) {
    for (Work& w : works) w.Wait();
    Synchronize(device);
  };

  multiply(2);
  wait(gathers());
  Barrier(mesh);
  const double product = seconds([&] { multiply(4); }) / 4;
  Barrier(mesh);
  const std::vector<double> agreed = Slowest(mesh, {product, seconds([&] { wait(gathers()); })});
  // Half as long as the collectives, so that they outlast it even slowed down; 5 ms at least.
  const double target = std::max(5e-3, mesh.size() == 1 ? 0.02 : agreed[1] / 2);
  const auto count = std::max<int64_t>(1, static_cast<int64_t>(target / agreed[0]));
  const auto rounds = static_cast<int64_t>(
      std::clamp(options.budget_seconds / (2 * target + agreed[1]), 3.0, 30.0));
  std::vector<double> alone, beside;
  for (int64_t i = 0; i < rounds; ++i) {
    Barrier(mesh);
    alone.push_back(seconds([&] { multiply(count); }));
    Barrier(mesh);
    std::vector<Work> works = gathers();
    beside.push_back(seconds([&] { multiply(count); }));
    wait(std::move(works));
  }
  const double quick = Median(Slowest(mesh, alone)), slow = Median(Slowest(mesh, beside));
  ComputeProfile out;
  out.flops_per_second = 2.0 * n * n * n * count / quick;
  out.overlap_slowdown = mesh.size() == 1 ? 1 : std::max(1.0, slow / quick);
  return out;
}

}  // namespace lins
