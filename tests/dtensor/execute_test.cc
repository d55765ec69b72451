// Executions: in place where shards lie in order, beside the caller, without allocations.
#include "dtensor/execute.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>

#include "comm/trace.h"
#include "dtensor/dtensor.h"
#include "mesh/error.h"
#include "on_mesh.h"

namespace {

thread_local int64_t allocations = 0;  // of the heap, by this thread

}  // namespace

// GCC takes these for a mismatch with the deletes it inlines.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace lins {
namespace {

using testing::OnMesh;

Layout Parse(const LiveMesh& mesh, const char* text, Shape shape) {
  return ValueOrThrow(Layout::Parse(text, std::move(shape), mesh));
}

std::shared_ptr<const PreparedPlan> Prepare(const LiveMesh& mesh, const char* src, const char* dst,
                                            const Shape& shape) {
  const Layout a = Parse(mesh, src, shape), b = Parse(mesh, dst, shape);
  return PreparedPlan::Create(ValueOrThrow(PlanRedistribution(a, b, 4)), mesh, Role::kOther);
}

at::Tensor Whole(const Shape& shape) {
  return at::arange(Numel(shape), at::kFloat).view(at::IntArrayRef(shape.data(), shape.size()));
}

// This rank's part under `text`.
at::Tensor Part(const LiveMesh& mesh, const char* text, const Shape& shape) {
  return DTensor::Distribute(Whole(shape), mesh, text).ToLocal();
}

// Counts what is taken from torch's allocator of tensors.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    ++count;
    return c10::GetDefaultCPUAllocator()->allocate(n);
  }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    default_copy_data(to, from, n);
  }
  std::atomic<int64_t> count = 0;
};

class CountTensors {
 public:
  CountTensors() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(&counter_, 1); }
  ~CountTensors() { c10::SetCPUAllocator(before_, 1); }
  int64_t count() const { return counter_.count; }

 private:
  CountingAllocator counter_;
  c10::Allocator* before_;
};

struct Transition {
  const char *src, *dst;
};
const Transition kTransitions[] = {{"S0(gpu)", "R"},
                                   {"S1(gpu)", "R"},
                                   {"S0(gpu)", "S1(gpu)"},
                                   {"R", "S0(gpu)"},
                                   {"R", "S1(gpu,node)"},
                                   {"+sum(gpu)", "S0(gpu)"},
                                   {"+sum(gpu)", "R"},
                                   {"+sum(gpu)", "S1(gpu)"},
                                   {"S0(node,gpu)", "S0(gpu,node)"},
                                   {"O(gpu; 1)", "R"},
                                   {"F(gpu,node)", "S1(node)"},
                                   {"R", "+sum(gpu)"},
                                   {"S0(gpu)", "+sum(gpu)"},
                                   {"+sum(node,gpu)", "S0(gpu)"},
                                   {"S0(gpu) +sum(node)", "R"}};

TEST(Execute, TakesNoMemoryInSteadyStateWhenGivenAnOutput) {
  // 8 x 8 divides, 7 x 5 does not: pieces of unlike sizes, packed and unpacked.
  for (const Shape& shape : {Shape{8, 8}, Shape{7, 5}}) {
    for (const auto& [src, dst] : kTransitions) {
      CountTensors tensors;
      std::atomic<int64_t> warm = 0;
      OnMesh({2, 2}, [&](const LiveMesh& mesh) {
        const auto plan = Prepare(mesh, src, dst, shape);
        const at::Tensor in = Part(mesh, src, shape);
        const at::Tensor out = Part(mesh, dst, shape).clone();
        const at::Tensor want = Execute(*plan, in).clone(), before = in.clone();
        const auto barrier = [&] { mesh.world().Everyone(Role::kGather).Barrier().Wait(); };
        for (int i = 0; i < 3; ++i) Execute(*plan, in, out);
        barrier();
        if (mesh.rank() == 0) warm = tensors.count();
        barrier();
        for (int i = 0; i < 5; ++i) Execute(*plan, in, out);
        barrier();
        EXPECT_EQ(tensors.count(), warm) << src << " -> " << dst << " of " << ShapeToString(shape);
        EXPECT_TRUE(out.equal(want)) << src << " -> " << dst;
        EXPECT_TRUE(in.equal(before)) << src << " -> " << dst;
      });
    }
  }
}

// Of all ranks' threads in `runs` calls, once warm; make(mesh) gives what each rank calls.
int64_t CountAllocations(const std::function<std::function<void()>(const LiveMesh&)>& make) {
  std::atomic<int64_t> total = 0;
  OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    const std::function<void()> call = make(mesh);
    for (int i = 0; i < 3; ++i) call();
    const int64_t before = allocations;
    for (int i = 0; i < 5; ++i) call();
    total += allocations - before;
  });
  return total;
}

TEST(Execute, AllocatesNothingBesideItsCollectives) {
  const Shape shape = {8, 8};
  const auto executed = [&](const Transition& t) {
    return CountAllocations([&](const LiveMesh& mesh) -> std::function<void()> {
      const auto plan = Prepare(mesh, t.src, t.dst, shape);
      const at::Tensor in = Part(mesh, t.src, shape), out = Part(mesh, t.dst, shape).clone();
      return [=] { Execute(*plan, in, out); };
    });
  };
  const int64_t bare = CountAllocations([&](const LiveMesh& mesh) -> std::function<void()> {
    Communicator* comm = &mesh.Comm(*mesh.ParseAxes("gpu"), Role::kGather);
    const at::Tensor in = Part(mesh, "S0(gpu)", shape), out = at::empty({8, 8});
    return [=, counts = Counts{32, 32}, info = OpInfo{"", "gpu", "all_gather"}] {
      comm->AllGather(out, in, counts, info).Wait();
    };
  });
  EXPECT_EQ(executed({"S0(gpu)", "R"}), bare);
  EXPECT_EQ(executed({"S1(gpu)", "R"}), bare);  // through a buffer
  for (const Transition& t : {Transition{"R", "S0(gpu)"},
                              {"R", "S1(gpu)"},
                              {"R", "+sum(gpu)"},
                              {"S0(gpu)", "+sum(gpu)"}}) {
    EXPECT_EQ(executed(t), 0) << t.src << " -> " << t.dst;
  }
}

TEST(Execute, MovesOrderedShardsInPlace) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const Shape shape = {6, 2};
    // Rows of one rank follow those of the other: sent from where they are, received where they
    // will be. An exchange of whole tensors likewise.
    for (const auto& [src, dst] :
         {Transition{"S0(gpu)", "R"}, {"+sum(gpu)", "S0(gpu)"}, {"F(gpu)", "R"}}) {
      const auto plan = Prepare(mesh, src, dst, shape);
      const at::Tensor in = Part(mesh, src, shape), out = Part(mesh, dst, shape).clone();
      const PreparedStep& step = plan->steps()[0];
      EXPECT_TRUE(step.send.in_order && step.recv.in_order) << src << " -> " << dst;
      EXPECT_EQ(Execute(*plan, in, out).data_ptr(), out.data_ptr());
    }
    const at::Tensor whole = at::zeros({6, 2});
    const at::Tensor own = whole.narrow(0, mesh.rank() * 3, 3);
    own.copy_(Part(mesh, "S0(gpu)", shape));
    const auto plan = Prepare(mesh, "S0(gpu)", "R", shape);
    EXPECT_EQ(Execute(*plan, own, whole).data_ptr(), whole.data_ptr());
    EXPECT_TRUE(whole.equal(Whole(shape)));
  });
}

TEST(Execute, LargeResultsReuseMemoryThatWasLetGo) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const auto plan = Prepare(mesh, "S0(gpu)", "R", {1024, 512});
    const at::Tensor in = Part(mesh, "S0(gpu)", {1024, 512});
    at::Tensor kept = Execute(*plan, in);
    const void* first = kept.data_ptr();
    EXPECT_NE(Execute(*plan, in).data_ptr(), first);  // in use
    kept = at::Tensor();
    EXPECT_EQ(Execute(*plan, in).data_ptr(), first);
    EXPECT_TRUE(Execute(*plan, in).equal(Whole({1024, 512})));
  });
}

TEST(ExecuteAsync, EveryTransitionEndsLikeTheOneThatIsWaitedFor) {
  for (const Shape& shape : {Shape{8, 8}, Shape{7, 5}, Shape{1, 3}, Shape{0, 2}}) {
    OnMesh({2, 3}, [&](const LiveMesh& mesh) {
      std::vector<Execution> running;
      std::vector<at::Tensor> want;
      for (const auto& [src, dst] : kTransitions) {
        const auto plan = Prepare(mesh, src, dst, shape);
        const at::Tensor in = Part(mesh, src, shape);
        want.push_back(Execute(*plan, in));
        running.push_back(ExecuteAsync(plan, in, mesh));
      }
      // Waited for in another order, while the caller communicates too.
      for (size_t i = running.size(); i-- > 0;) {
        mesh.world().Everyone(Role::kOther).Barrier().Wait();
        const at::Tensor got = running[i].Wait();
        EXPECT_TRUE(got.equal(want[i])) << kTransitions[i].src << " -> " << kTransitions[i].dst;
        EXPECT_EQ(got.data_ptr(), running[i].Wait().data_ptr());
        EXPECT_TRUE(running[i].Done());
      }
    });
  }
}

// Two steps at least: what is reduced by nodes, then gathered.
constexpr char kFrom[] = "S0(gpu) +sum(node)", kTo[] = "R";

TEST(ExecuteAsync, AllStepsGoOnWithoutTheCaller) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const auto plan = Prepare(mesh, kFrom, kTo, {8, 8});
    ASSERT_GT(plan->steps().size(), 1u);
    RankContext& context = mesh.world().context();
    const int trace = context.StartTrace();
    Execution e = ExecuteAsync(plan, Part(mesh, kFrom, {8, 8}), mesh);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!e.Done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(e.Done());
    EXPECT_TRUE(e.Wait().equal(Whole({8, 8})));
    const std::vector<TraceRecord> records = context.Trace(trace);
    context.StopTrace(trace);
    ASSERT_EQ(records.size(), plan->steps().size());
    for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].op, plan->steps()[i].info.op);
  });
}

TEST(ExecuteAsync, ItsCollectivesAreApartFromTheCallers) {
  // One rank's caller is ahead of its background, the other's behind.
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    RankContext& context = mesh.world().context();
    const auto plan = Prepare(mesh, "S0(gpu)", "R", {8, 8});
    const at::Tensor in = Part(mesh, "S0(gpu)", {8, 8});
    const int delay =
        mesh.rank() == 0 ? context.AddDelay({.op = "all_gather"}, /*seconds=*/0.1) : -1;
    Execution e = ExecuteAsync(plan, in, mesh);
    if (delay >= 0) context.Remove(delay);
    EXPECT_TRUE(Execute(*plan, in).equal(Whole({8, 8})));
    EXPECT_TRUE(e.Wait().equal(Whole({8, 8})));
  });
}

TEST(ExecuteAsync, FailuresSurfaceOnEveryRankAtWait) {
  const auto worlds = World::Threads(4, /*timeout_seconds=*/0.5);
  std::atomic<int> failures = 0;
  testing::RunRanks(4, [&](int64_t rank) {
    RankContext::Scope scope(worlds[rank]->context_ptr());
    const LiveMesh mesh = LiveMesh::Create(worlds[rank], {2, 2}, {"node", "gpu"});
    const auto plan = Prepare(mesh, kFrom, kTo, {8, 8});
    if (rank == 3) worlds[rank]->context().AddFailure({.op = plan->steps()[0].info.op}, "lost");
    Execution e = ExecuteAsync(plan, Part(mesh, kFrom, {8, 8}), mesh);
    for (int i = 0; i < 2; ++i) {
      try {
        e.Wait();
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find("lost") != std::string::npos, rank == 3);
        ++failures;
      }
    }
    EXPECT_TRUE(e.Done());
    // Later ones fail too, at once on the rank that knows.
    EXPECT_THROW(ExecuteAsync(plan, Part(mesh, kFrom, {8, 8}), mesh).Wait(), Error);
  });
  EXPECT_EQ(failures, 8);
}

TEST(ExecuteAsync, WhatIsDroppedStillTakesPart) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const auto plan = Prepare(mesh, kFrom, kTo, {8, 8});
    const at::Tensor in = Part(mesh, kFrom, {8, 8});
    Execution kept;
    {
      Execution e = ExecuteAsync(plan, in, mesh);
      if (mesh.rank() % 2 == 0) kept = e;
    }
    EXPECT_TRUE(ExecuteAsync(plan, in, mesh).Wait().equal(Whole({8, 8})));
    if (mesh.rank() % 2 == 0) {
      EXPECT_TRUE(kept.Wait().equal(Whole({8, 8})));
    }
  });
}

TEST(RedistributeAsync, IsRecordedLikeTheOther) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    for (const char* src : {"S0(gpu)", "+max(gpu)"}) {
      at::Tensor grads[2];
      for (const bool async : {false, true}) {
        const at::Tensor local = Part(mesh, src, {4, 4}).clone().requires_grad_(true);
        const DTensor x = DTensor::FromLocal(local, mesh, src, Shape{4, 4});
        const DTensor y = async ? x.RedistributeAsync("R").Wait() : x.Redistribute("R");
        (y.ToLocal() * Whole({4, 4})).sum().backward();
        grads[async] = local.grad();
      }
      EXPECT_TRUE(grads[0].equal(grads[1])) << src;
    }
  });
}

}  // namespace
}  // namespace lins
