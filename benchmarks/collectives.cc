// Collectives over Gloo: lins' point-to-point ones beside Gloo's own, interleaved in one run.
//
//   collectives [processes: 2, then 4] [rounds = 15]
//   collectives --rank RANK PROCESSES ROUNDS STORE [NODES]     one rank, started by the caller
//
// Each process is a rank. A cell is the median over rounds of the slowest rank's time. With NODES
// there are two columns for lins, with groups that know the nodes and with groups that do not, and
// the bytes that leave the first node through GLOO_SOCKET_IFNAME: collectives_nodes.py runs it so.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/trace.h"
#include "comm/world.h"

extern char** environ;

namespace {

struct Variant {
  std::string op, name;
  std::function<void()> run;
};

void AddLins(std::vector<Variant>& variants, lins::Communicator& c, const std::string& name,
             int64_t n) {
  using lins::ReduceOp;
  const at::Tensor whole = at::ones({n}), other = at::zeros({n}), own = at::ones({n / c.size()});
  const auto add = [&](const char* op, std::function<void()> run) {
    variants.push_back({op, name, std::move(run)});
  };
  add("all_gather", [=, &c] { c.AllGather(other, own).Wait(); });
  add("reduce_scatter", [=, &c] { c.ReduceScatter(own, whole, ReduceOp::kSum).Wait(); });
  add("all_reduce", [=, &c] { c.AllReduce(whole, ReduceOp::kMax).Wait(); });
  add("all_to_all", [=, &c] { c.AllToAll(other, whole).Wait(); });
  add("broadcast", [=, &c] { c.Broadcast(whole, 0).Wait(); });
  add("barrier", [&c] { c.Barrier().Wait(); });
}

void AddGloo(std::vector<Variant>& variants, c10d::ProcessGroupGloo& gloo, int64_t n) {
  const int64_t k = gloo.getSize();
  at::Tensor w = at::ones({n}), o = at::zeros({n}), s = at::ones({n / k});
  std::vector<int64_t> counts(k, n / k);
  const auto add = [&](const char* op, std::function<void()> run) {
    variants.push_back({op, "gloo", std::move(run)});
  };
  add("all_gather", [=, &gloo]() mutable { gloo._allgather_base(o, s)->wait(); });
  add("reduce_scatter", [=, &gloo]() mutable { gloo._reduce_scatter_base(s, w)->wait(); });
  add("all_reduce", [=, &gloo]() mutable {
    std::vector<at::Tensor> tensors = {w};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    gloo.allreduce(tensors, options)->wait();
  });
  add("all_to_all", [=, &gloo]() mutable { gloo.alltoall_base(o, w, counts, counts)->wait(); });
  add("broadcast", [=, &gloo]() mutable {
    std::vector<at::Tensor> tensors = {w};
    gloo.broadcast(tensors)->wait();
  });
  add("barrier", [&gloo] { gloo.barrier()->wait(); });
}

// Bytes that have left through the interface that Gloo uses, headers included; 0 where unknown.
double SentBytes() {
  const char* name = std::getenv("GLOO_SOCKET_IFNAME");
  double bytes = 0;
  if (name != nullptr) {
    std::ifstream(absl::StrCat("/sys/class/net/", name, "/statistics/tx_bytes")) >> bytes;
  }
  return bytes;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void RunRank(int rank, int size, int rounds, const std::string& path, int nodes) {
  at::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::FileStore>(path, size);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("native", store), rank, size,
      c10d::ProcessGroupGloo::Options::create_default(std::chrono::seconds(60)));
  auto world = lins::World::Gloo(store, rank, size, 60.0);
  auto flat = lins::World::Gloo(store, rank, size, 60.0);
  std::vector<int64_t> ranks(size);
  for (int r = 0; r < size; ++r) ranks[r] = r;
  lins::Communicator& control = world->Get(ranks, lins::Role::kOther);
  if (nodes > 1) world->SetNodeSize(size / nodes);
  lins::Communicator& c = world->Get(ranks, lins::Role::kGather);

  std::vector<int64_t> sizes = {int64_t{4} << 10, int64_t{256} << 10, int64_t{16} << 20};
  if (const char* text = std::getenv("COLLECTIVES_KIB"); text != nullptr) {
    sizes.clear();
    std::istringstream in(text);
    for (int64_t kib; in >> kib;) sizes.push_back(kib << 10);
  }
  for (const int64_t bytes : sizes) {
    const int repeat = std::clamp<int64_t>((int64_t{1} << 20) / bytes, 1, 20);
    std::vector<Variant> variants;
    AddLins(variants, c, "lins", bytes / 4);
    if (nodes > 1) AddLins(variants, flat->Get(ranks, lins::Role::kGather), "flat", bytes / 4);
    AddGloo(variants, *gloo, bytes / 4);
    const size_t operations = variants.size() / (nodes > 1 ? 3 : 2);
    std::vector<std::vector<double>> times(variants.size()), sent(variants.size());
    for (int round = -2; round < rounds; ++round) {  // the first two warm up
      for (size_t i = 0; i < variants.size(); ++i) {
        // All variants of an operation one after another.
        const size_t kinds = variants.size() / operations, v = i % kinds * operations + i / kinds;
        control.Barrier().Wait();
        const double bytes_before = SentBytes(), begin = lins::MonotonicSeconds();
        for (int n = 0; n < repeat; ++n) variants[v].run();
        const at::Tensor slowest = at::full({1}, lins::MonotonicSeconds() - begin, at::kDouble);
        control.AllReduce(slowest, lins::ReduceOp::kMax).Wait();
        if (round < 0) continue;
        times[v].push_back(slowest.item<double>() / repeat);
        sent[v].push_back((SentBytes() - bytes_before) / repeat);
      }
    }
    if (rank != 0) continue;
    for (size_t v = 0; v < operations; ++v) {
      std::printf("| %d | %lld KiB | %s |", size, static_cast<long long>(bytes >> 10),
                  variants[v].op.c_str());
      for (size_t w = v; w < variants.size(); w += operations) {
        std::printf(" %.0f |", Median(times[w]) * 1e6);
      }
      std::printf(" %.2f |", Median(times[variants.size() - operations + v]) / Median(times[v]));
      for (size_t w = v; w < variants.size() && nodes > 1; w += operations) {
        std::printf(" %.2f |", Median(sent[w]) / static_cast<double>(bytes));
      }
      std::printf("\n");
    }
    std::fflush(stdout);
  }
  control.Barrier().Wait();
}

// Runs `size` ranks as processes; 0 when all succeed.
int RunRanks(char* self, const std::string& size, const std::string& rounds) {
  char path[] = "/tmp/collectives-XXXXXX";
  close(mkstemp(path));
  std::vector<pid_t> children;
  for (int rank = 0; rank < std::atoi(size.c_str()); ++rank) {
    std::vector<std::string> args = {self, "--rank", absl::StrCat(rank), size, rounds, path};
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    pid_t child;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ) == 0) {
      children.push_back(child);
    }
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed |= status != 0;
  }
  unlink(path);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 6 && std::string(argv[1]) == "--rank") {
    RunRank(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5],
            argc > 6 ? std::atoi(argv[6]) : 1);
    return 0;
  }
  std::vector<std::string> args;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') args.push_back(argv[i]);  // options are for the other benchmarks
  }
  const std::string rounds = args.size() > 1 ? args[1] : "15";
  std::printf("| processes | message | operation | lins, us | gloo, us | gloo / lins |\n");
  std::printf("|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  if (!args.empty()) return RunRanks(argv[0], args[0], rounds);
  return RunRanks(argv[0], "2", rounds) | RunRanks(argv[0], "4", rounds);
}
