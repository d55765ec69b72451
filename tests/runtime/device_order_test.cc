// The order of a training step on a device: every use of shared memory waits for those before it,
// and what may overlap does. On a simulated device, over recorded groups.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "dtensor/execute.h"
#include "dtensor/plan_cache.h"
#include "runtime/optimizer.h"
#include "tests/runtime/recorded_mesh.h"

namespace lins {
namespace {

using testing::NcclRecorder;
using testing::OnRecordedMesh;
using testing::SimulatedDevice;
using testing::SmallModel;

const char* const kPolicies[] = {"ddp",
                                 "zero1",
                                 "zero2",
                                 "zero3",
                                 "fsdp2",
                                 "hsdp",
                                 "mics:2",
                                 "zero++:2",
                                 "P=1 G=2x1 OS=4",
                                 "P=2x1 G=2x1 OS=2x2",
                                 "P=2x1 G=4 OS=4 between=1",
                                 "P=4 G=1 OS=4",
                                 "paper P=1 G=1 OS=1",
                                 "paper P=1 G=1 OS=4",
                                 "paper P=2x1 G=2x1 OS=4",
                                 "paper P=2x1 G=4 OS=4",
                                 "paper P=4 G=4 OS=4"};

// Trains, looks at everything, changes parameters, trains again.
void Train(const LiveMesh& mesh, const std::string& policy, const ShardOptions& options,
           int64_t micro_batches) {
  SmallModel model(mesh, policy, options);
  AdamW opt(model.core, {{.lr = 0.01}}, {});
  const auto step = [&] {
    model.Backward(mesh, micro_batches);
    model.core->ClipGradNorm(1.0, 2);
    opt.Step();
  };
  for (int i = 0; i < 2; ++i) step();
  {
    c10::NoGradGuard no_grad;
    model.Forward(at::ones({3, SmallModel::kWidth}));
    for (const auto& [name, state] : model.core->States()) {
      NoteWrite(state.param.ToLocal(), "load", name);
      at::Tensor(state.param.ToLocal()).mul_(0.5);
    }
    model.core->Unshard({1, 2});
    NoteWrite(model.w[0], "write", "layers.0");
    model.w[0].mul_(2);
    model.core->Reshard({1, 2}, /*writeback=*/true);
  }
  step();
  model.core->FinishUpdates();
  EXPECT_EQ(model.core->MemoryUse().buffers.live_leases, 0);
}

std::vector<std::string> Problems(const std::string& policy, const ShardOptions& options,
                                  int64_t micro_batches) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2},
                 [&](const LiveMesh& mesh) { Train(mesh, policy, options, micro_batches); });
  EXPECT_GT(device.uses(), 500) << policy;
  return device.problems();
}

class OrderTest : public ::testing::TestWithParam<const char*> {};

TEST_P(OrderTest, EveryUseOfMemoryWaitsForThoseBefore) {
  for (const int64_t micro_batches : {1, 3}) {
    for (const int prefetch : {0, 1, 2, 3}) {
      const auto problems = Problems(
          GetParam(), {.prefetch = prefetch, .overlap_update = prefetch % 2 == 1}, micro_batches);
      EXPECT_TRUE(problems.empty())
          << GetParam() << ", " << micro_batches << " micro-batches, prefetch " << prefetch << ":\n"
          << absl::StrJoin(problems, "\n");
    }
  }
}

TEST_P(OrderTest, AlsoWithOtherTypesAndWithoutOverlap) {
  for (const ShardOptions& options :
       {ShardOptions{.param_dtype = at::kBFloat16},
        ShardOptions{.gradient_buckets = 1,
        .param_dtype = at::kBFloat16,
        .grad_dtype = at::kFloat,
        .reduce_dtype = at::kBFloat16},
        ShardOptions{.grad_dtype = at::kFloat, .reduce_dtype = at::kBFloat16},
        ShardOptions{.overlap = false}, ShardOptions{.offload_optimizer = true},
        ShardOptions{
            .param_dtype = at::kBFloat16, .offload_optimizer = true, .offload_chunk_bytes = 256}}) {
    const auto problems = Problems(GetParam(), options, 2);
    EXPECT_TRUE(problems.empty()) << GetParam() << ":\n" << absl::StrJoin(problems, "\n");
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, OrderTest, ::testing::ValuesIn(kPolicies));

// --- What is missing is found: each of these waits is forgotten everywhere.
struct Forgotten {
  const char *from, *to, *policy;
};

class ForgottenWaitTest : public ::testing::TestWithParam<Forgotten> {};

TEST_P(ForgottenWaitTest, IsReported) {
  const Forgotten& f = GetParam();
  SimulatedDevice device;
  device.drop = [&f](const std::string& from, const std::string& to) {
    return from == f.from && to == f.to;
  };
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2},
                 [&](const LiveMesh& mesh) { Train(mesh, f.policy, {.prefetch = 1}, 3); });
  const auto problems = device.problems();
  EXPECT_FALSE(problems.empty()) << f.from << " -> " << f.to;
  for (const std::string& p : problems) {
    if (p.find("stream ") != std::string::npos && p.find("unit '") != std::string::npos) return;
  }
  ADD_FAILURE() << absl::StrJoin(problems, "\n");
}

INSTANTIATE_TEST_SUITE_P(
    Waits, ForgottenWaitTest,
    ::testing::Values(
        // Compute waits for gathers, gathers for who had the memory, and for updated parameters.
        Forgotten{"gather", "compute", "zero3"}, Forgotten{"compute", "gather", "zero3"},
        Forgotten{"update", "gather", "P=2x1 G=2x1 OS=2x2"},
        // Reductions wait for gradients, the optimizer for reductions.
        Forgotten{"compute", "reduce", "zero2"}, Forgotten{"reduce", "compute", "zero2"},
        Forgotten{"compute", "reduce", "ddp"}, Forgotten{"reduce", "compute", "ddp"},
        // A stage on another stream waits for the one before it.
        Forgotten{"reduce", "reduce", "hsdp"},
        // Updates wait for the optimizer, forwards for updates.
        Forgotten{"compute", "update", "zero2"}, Forgotten{"update", "compute", "zero2"},
        // Memory waits for its last use before it is freed, its first for who had it.
        Forgotten{"memory", "gather", "zero3"},
        // And c10d's own.
        Forgotten{"nccl", "gather", "zero3"}, Forgotten{"nccl", "reduce", "zero2"},
        Forgotten{"gather", "nccl", "zero3"}, Forgotten{"reduce", "nccl", "zero2"}),
    [](const auto& info) { return "At" + std::to_string(info.index); });

// Autograd adds gradients on the streams of the leaves, which wait for those that made them; the
// end of a unit's backward runs on the stream of its forward, which does not wait for the leaves'.
TEST(Order, GradientsMayBeAddedOnAnotherStream) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) {
    const c10::impl::VirtualGuardImpl guard(device.queue().type());
    const c10::Stream compute = CurrentStream(device.queue());
    const c10::Stream leaves = guard.getStreamFromGlobalPool(device.queue());
    device.Name(leaves.id(), "leaves");
    SmallModel model(mesh, "zero2");
    for (const auto& weights : {model.w, model.b}) {
      for (const at::Tensor& leaf : weights) {
        leaf.register_hook([&](const at::Tensor& grad) {
          const Event made = Event::Of(compute);
          guard.exchangeStream(leaves);
          made.Wait();
          return grad.clone();  // autograd itself tells the allocator of the other stream
        });
      }
    }
    AdamW opt(model.core, {{.lr = 0.01}}, {});
    for (int i = 0; i < 2; ++i) {
      // Each unit's input tells that its backward is over.
      const at::Tensor y = model.Forward(at::ones({3, SmallModel::kWidth}), [&](at::Tensor& t) {
        t.register_hook([&](const at::Tensor&) { guard.exchangeStream(compute); });
      });
      y.backward();
      const Event end = Event::Of(leaves);
      guard.exchangeStream(compute);
      end.Wait();
      opt.Step();
    }
  });
  EXPECT_EQ(device.Text(), "");
}

// --- Executions that the caller does not wait for at once.
TEST(Order, ExecutionsRunBesideTheirCaller) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) {
    const auto layout = [&](const char* text) {
      return ValueOrThrow(Layout::Parse(text, {8, 4}, mesh));
    };
    // Over both axes in two steps, one of them through buffers that streams share.
    for (const char* source : {"S0(gpu,node)", "S1(node)", "+sum(node,gpu)"}) {
      const auto plan = mesh.cache().Get(layout(source), layout("R"), 4, mesh);
      for (int i = 0; i < 3; ++i) {
        at::Tensor local = at::ones(plan->src_sizes());
        NoteWrite(local, "make", "u");
        Execution e = ExecuteAsync(plan, local, mesh);
        local.reset();
        if (i == 2) break;  // and one is dropped
        const at::Tensor whole = e.Wait();
        EXPECT_TRUE(e.Done());
        NoteRead(whole, "use", "u");
        EXPECT_EQ(whole.min().item<float>(), std::string(source) == "+sum(node,gpu)" ? 4 : 1);
      }
    }
  });
  EXPECT_GT(device.uses(), 50);
  EXPECT_EQ(device.Text(), "");
}

TEST(Order, AResultThatIsNotWaitedForIsReported) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {1, 2}, [&](const LiveMesh& mesh) {
    const auto layout = [&](const char* text) {
      return ValueOrThrow(Layout::Parse(text, {8, 4}, mesh));
    };
    const auto plan = mesh.cache().Get(layout("S0(gpu)"), layout("R"), 4, mesh);
    const at::Tensor local = at::ones(plan->src_sizes()), out = at::empty({8, 4});
    Execution e = ExecuteAsync(plan, local, mesh, out);
    NoteRead(out, "use", "u");
    e.Wait();
  });
  EXPECT_NE(device.Text().find("'use' of unit 'u' on stream compute does not wait"),
            std::string::npos)
      << device.Text();
}

TEST(Order, NcclIsCalledOnTheStreamOfTheRole) {
  for (const char* policy : {"zero2", "zero3", "hsdp", "paper P=2x1 G=2x1 OS=4"}) {
    SimulatedDevice device;
    NcclRecorder recorder;
    OnRecordedMesh(recorder, {2, 2},
                   [&](const LiveMesh& mesh) { Train(mesh, policy, {.prefetch = 1}, 2); });
    int calls = 0;
    for (const testing::NcclCall& call : recorder.Calls(3)) {
      if (call.role == "other") continue;  // agreements: of the caller
      EXPECT_EQ(call.stream, call.role) << policy << ": " << call.op;
      ++calls;
    }
    EXPECT_GT(calls, 30) << policy;
  }
}

// --- And what may overlap does: it does not wait.
TEST(Overlap, GathersAheadDoNotWaitForCompute) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2},
                 [&](const LiveMesh& mesh) { Train(mesh, "zero3", {.prefetch = 1}, 1); });
  const std::string gather = "all_gather (gather)";
  EXPECT_TRUE(device.Overlapped(gather, "layers.2", "compute", "layers.1"));  // forward
  EXPECT_TRUE(device.Overlapped(gather, "layers.1", "compute", "layers.2"));  // backward
  EXPECT_FALSE(
      device.Overlapped(gather, "layers.3", "compute", "layers.1"));  // whose memory it has
}

TEST(Overlap, ReductionsRunBesideTheBackwardOfTheNextUnit) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) { Train(mesh, "zero2", {}, 1); });
  const std::string scatter = "reduce_scatter (reduce)";
  EXPECT_TRUE(device.Overlapped("add gradient", "layers.2", scatter, "layers.3"));
  // Of two contributions at once the first is reduced before the third is collected.
  EXPECT_FALSE(device.Overlapped("add gradient", "layers.1", scatter, "layers.3"));
}

TEST(Overlap, UpdatesRunBesideTheNextForward) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) { Train(mesh, "zero2", {}, 1); });
  EXPECT_TRUE(device.Overlapped("compute", "layers.0", "all_gather (update)", "layers.3"));
  EXPECT_FALSE(device.Overlapped("compute", "layers.3", "all_gather (update)", "layers.3"));
}

TEST(Overlap, StagesOfOneUnitRunBesideThoseOfAnother) {
  SimulatedDevice device;
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) { Train(mesh, "hsdp", {}, 1); });
  EXPECT_TRUE(
      device.Overlapped("reduce_scatter (reduce)", "layers.2", "all_reduce (reduce)", "layers.3"));
}

}  // namespace
}  // namespace lins
