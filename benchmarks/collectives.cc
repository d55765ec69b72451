// Collectives over Gloo: lins' point-to-point ones beside Gloo's own, interleaved in one run.
//
//   collectives [processes: 2, then 4] [rounds = 15]
//
// Each process is a rank. A cell is the median over rounds of the slowest rank's time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
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

// All variants with n elements in the whole message.
std::vector<Variant> Variants(lins::Communicator& c, c10d::ProcessGroupGloo& gloo, int64_t n) {
  using lins::ReduceOp;
  const int64_t k = c.size(), part = n / k;
  const at::Tensor whole = at::ones({n}), other = at::zeros({n}), own = at::ones({part});
  at::Tensor w = whole, o = other, s = own;
  std::vector<int64_t> counts(k, part);
  return {
      {"all_gather", "lins", [=, &c] { c.AllGather(other, own).Wait(); }},
      {"all_gather", "gloo", [=, &gloo]() mutable { gloo._allgather_base(o, s)->wait(); }},
      {"reduce_scatter", "lins", [=, &c] { c.ReduceScatter(own, whole, ReduceOp::kSum).Wait(); }},
      {"reduce_scatter", "gloo", [=, &gloo]() mutable { gloo._reduce_scatter_base(s, w)->wait(); }},
      {"all_reduce", "lins", [=, &c] { c.AllReduce(whole, ReduceOp::kMax).Wait(); }},
      {"all_reduce", "gloo",
       [=, &gloo]() mutable {
         std::vector<at::Tensor> tensors = {w};
         c10d::AllreduceOptions options;
         options.reduceOp = c10d::ReduceOp::MAX;
         gloo.allreduce(tensors, options)->wait();
       }},
      {"all_to_all", "lins", [=, &c] { c.AllToAll(other, whole).Wait(); }},
      {"all_to_all", "gloo",
       [=, &gloo]() mutable { gloo.alltoall_base(o, w, counts, counts)->wait(); }},
      {"broadcast", "lins", [=, &c] { c.Broadcast(whole, 0).Wait(); }},
      {"broadcast", "gloo",
       [=, &gloo]() mutable {
         std::vector<at::Tensor> tensors = {w};
         gloo.broadcast(tensors)->wait();
       }},
      {"barrier", "lins", [&c] { c.Barrier().Wait(); }},
      {"barrier", "gloo", [&gloo] { gloo.barrier()->wait(); }},
  };
}

void RunRank(int rank, int size, int rounds, const std::string& path) {
  at::set_num_threads(1);
  auto store = c10::make_intrusive<c10d::FileStore>(path, size);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("native", store), rank, size,
      c10d::ProcessGroupGloo::Options::create_default(std::chrono::seconds(60)));
  auto world = lins::World::Gloo(store, rank, size, 60.0);
  std::vector<int64_t> ranks(size);
  for (int r = 0; r < size; ++r) ranks[r] = r;
  lins::Communicator& c = world->Get(ranks, lins::Role::kGather);
  lins::Communicator& control = world->Get(ranks, lins::Role::kOther);

  for (const int64_t bytes : {int64_t{4} << 10, int64_t{256} << 10, int64_t{16} << 20}) {
    const int repeat = bytes >= (1 << 20) ? 1 : 20;
    std::vector<Variant> variants = Variants(c, *gloo, bytes / 4);
    std::vector<std::vector<double>> times(variants.size());
    for (int round = -2; round < rounds; ++round) {  // the first two warm up
      for (size_t v = 0; v < variants.size(); ++v) {
        control.Barrier().Wait();
        const double begin = lins::MonotonicSeconds();
        for (int i = 0; i < repeat; ++i) variants[v].run();
        const at::Tensor slowest = at::full({1}, lins::MonotonicSeconds() - begin, at::kDouble);
        control.AllReduce(slowest, lins::ReduceOp::kMax).Wait();
        if (round >= 0) times[v].push_back(slowest.item<double>() / repeat);
      }
    }
    if (rank != 0) continue;
    for (size_t v = 0; v < variants.size(); v += 2) {
      double median[2];
      for (int i : {0, 1}) {
        std::sort(times[v + i].begin(), times[v + i].end());
        median[i] = times[v + i][times[v + i].size() / 2] * 1e6;
      }
      std::printf("| %d | %lld KiB | %s | %.0f | %.0f | %.2f |\n", size,
                  static_cast<long long>(bytes >> 10), variants[v].op.c_str(), median[0], median[1],
                  median[1] / median[0]);
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
  if (argc == 6 && std::string(argv[1]) == "--rank") {
    RunRank(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
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
