// The calls that NCCL would get: for each communicator they are the steps of the plan's
// redistributions, in order, the same on all ranks of the group.
#include <gtest/gtest.h>

#include <map>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/optimizer.h"
#include "tests/dtensor/on_mesh.h"
#include "tests/runtime/recorded_mesh.h"

namespace lins {
namespace {

using testing::NcclCall;
using testing::NcclRecorder;
using testing::OnRecordedMesh;
using testing::SmallModel;

using Communicator = std::pair<std::string, std::vector<int64_t>>;  // role and ranks
using Calls = std::map<Communicator, std::vector<std::string>>;

std::string Show(const std::string& op, int64_t bytes, bool coalesced) {
  return absl::StrCat(op, " ", bytes, coalesced ? " coalesced" : "");
}

// Says what a plan asks for.
class Expectation {
 public:
  Expectation(const LiveMesh& mesh, const SmallModel& model)
      : mesh_(mesh), rank_(mesh.rank()), model_(*model.core) {}

  Calls Step(int64_t micro_batches) {
    const int last = static_cast<int>(model_.units().size()) - 1;
    for (int64_t m = 0; m < micro_batches; ++m) {
      for (int u = 0; u <= last; ++u) Gather(u, /*backward=*/false);
      Gather(0, true);
      for (int u = last; u > 0; --u) Gather(u, true);
      for (int u = last; u >= 0; --u) Reduce(u, m + 1 == micro_batches);
    }
    for (int u = 0; u <= last; ++u) Update(u);
    return std::move(calls_);
  }

 private:
  template <typename Fn>
  void ForEach(int unit, Fn fn) {
    for (const auto& b : model_.units()[unit]->buffers) {
      unit_ = b.get();
      fn(b->plan());
    }
  }
  void Gather(int unit, bool backward) {
    ForEach(unit, [&](const UnitPlan& p) {
      if (backward && unit_->StaysWhole()) return;
      const bool elsewhere = backward && !p.policy.between.empty();
      Add("gather", elsewhere ? p.regather : p.gather, unit_->types().param);
    });
  }
  void Reduce(int unit, bool last) {
    ForEach(unit, [&](const UnitPlan& p) {
      const bool cut = Product(p.policy.grad) > 1;
      if (!cut && !last) return;  // added up where it is
      const at::ScalarType type = unit_->types().reduce;
      if (p.family == Family::kPaper) {
        Add("reduce", p.scatter, type);
        // Of which a rank keeps its part.
        const RedistributionPlan& sum = last ? p.reduce : p.accumulate;
        if (sum.steps.empty() || sum.steps[0].kind != StepKind::kAllReduce) return;
        const int64_t n = sum.steps[0].before.LocalNumel(rank_);
        const int64_t bucket = std::max<int64_t>(1, p.bucket_bytes / Size(type));
        for (int64_t at = 0; at < n; at += bucket) {
          calls_[{"reduce", mesh_.Group(sum.steps[0].axes, rank_)}].push_back(
              Show("allreduce", std::min(bucket, n - at) * Size(type), false));
        }
        return;
      }
      if (cut) Add("reduce", p.accumulate, type);
      if (last) Add("reduce", p.reduce, type);
    });
  }
  void Update(int unit) {
    ForEach(unit, [&](const UnitPlan& p) {
      const at::ScalarType type = unit_->types().param;
      if (p.family == Family::kPlanned) return Add("update", p.update, type);
      if (p.update.steps.empty()) return;
      const auto group = mesh_.Group(p.update.steps[0].axes, rank_);
      const int64_t slot = p.param.LocalNumel(rank_) / static_cast<int64_t>(group.size());
      for (size_t owner = 0; owner < group.size(); ++owner) {
        calls_[{"update", group}].push_back(Show("broadcast", slot * Size(type), true));
      }
    });
  }
  static int64_t Size(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }
  void Add(const std::string& role, const RedistributionPlan& plan, at::ScalarType type) {
    for (const lins::Step& s : plan.steps) Add(role, s, type);
  }
  void Add(const std::string& role, const lins::Step& s, at::ScalarType type) {
    if (Mesh::GroupSize(s.axes) == 1) return;
    const int64_t before = s.before.LocalNumel(rank_) * Size(type);
    const int64_t after = s.after.LocalNumel(rank_) * Size(type);
    std::string call;
    switch (s.kind) {
      case StepKind::kSlice:
      case StepKind::kLocal:
        return;
      case StepKind::kAllGather:
        call = Show("_allgather_base", after, false);
        break;
      case StepKind::kReduceScatter:
        call = Show("_reduce_scatter_base", before, false);
        break;
      case StepKind::kAllReduce:
        call = Show("allreduce", before, false);
        break;
      case StepKind::kBroadcast:
        call = Show("broadcast", after, false);
        break;
      default:
        call = Show("alltoall_base", before, false);
    }
    calls_[{role, mesh_.Group(s.axes, rank_)}].push_back(call);
  }

  const LiveMesh& mesh_;
  const int64_t rank_;
  const ShardedModel& model_;
  const FlatBuffer* unit_ = nullptr;
  Calls calls_;
};

std::string Show(const Calls& calls) {
  std::string out;
  for (const auto& [comm, list] : calls) {
    absl::StrAppend(&out, comm.first, " [", absl::StrJoin(comm.second, ","),
                    "]: ", absl::StrJoin(list, "; "), "\n");
  }
  return out;
}

class CallsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void ExpectCalls(std::vector<int64_t> shape, int64_t micro_batches, const ShardOptions& options) {
    const std::string what = absl::StrCat(GetParam(), " on ", absl::StrJoin(shape, "x"), ", ",
                                          micro_batches, " micro-batches");
    NcclRecorder recorder;
    std::mutex mutex;
    std::map<Communicator, std::map<int64_t, std::vector<std::string>>> by_group;
    OnRecordedMesh(recorder, shape, [&](const LiveMesh& mesh) {
      SmallModel model(mesh, GetParam(), options);
      AdamW opt(model.core, {{.lr = 0.01}}, {});
      size_t before = recorder.Calls(mesh.rank()).size();
      for (int step = 0; step < 2; ++step) {
        model.Backward(mesh, micro_batches);
        opt.Step();
        model.core->FinishUpdates();
        Calls got;
        const auto calls = recorder.Calls(mesh.rank());
        for (size_t i = before; i < calls.size(); ++i) {
          const NcclCall& c = calls[i];
          const Communicator comm(c.role, c.group);
          const std::string shown = Show(c.op, c.bytes, c.coalesced != 0);
          if (c.role != "other") got[comm].push_back(shown);
          std::lock_guard lock(mutex);
          by_group[comm][mesh.rank()].push_back(shown);
        }
        before = calls.size();
        const Calls want = Expectation(mesh, model).Step(micro_batches);
        EXPECT_EQ(got, want) << what << "\ngot:\n" << Show(got) << "wanted:\n" << Show(want);
      }
    });
    for (const auto& [comm, by_rank] : by_group) {
      EXPECT_EQ(by_rank.size(), comm.second.size()) << what;
      for (const auto& [rank, list] : by_rank) {
        EXPECT_EQ(list, by_rank.begin()->second) << what << ", rank " << rank;
      }
    }
  }
};

TEST_P(CallsTest, AreTheStepsOfThePlan) {
  for (const int64_t micro_batches : {1, 2}) ExpectCalls({2, 2}, micro_batches, {});
  const bool two_nodes = std::string(GetParam()).find("x2") != std::string::npos;
  if (!two_nodes) ExpectCalls({1, 4}, 2, {});
}

TEST_P(CallsTest, HaveTheBytesOfTheTypesThatAreSent) {
  ExpectCalls(
      {2, 2}, 2,
      {.param_dtype = at::kBFloat16, .grad_dtype = at::kFloat, .reduce_dtype = at::kBFloat16});
}

TEST_P(CallsTest, HaveTheBucketsOfThePaper) { ExpectCalls({2, 2}, 2, {.bucket_bytes = 24}); }

TEST_P(CallsTest, DoNotDependOnOverlap) {
  ExpectCalls({2, 2}, 2, {.overlap = false});
  ExpectCalls({2, 2}, 2, {.prefetch = 3, .overlap_update = false});
}

INSTANTIATE_TEST_SUITE_P(Policies, CallsTest,
                         ::testing::Values("ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp",
                                           "mics:2", "zero++:2", "P=1 G=2x1 OS=4",
                                           "P=2x1 G=2x1 OS=2x2", "P=4 G=1 OS=4",
                                           "paper P=1 G=1 OS=4", "paper P=2x1 G=2x1 OS=4",
                                           "paper P=2x1 G=4 OS=4", "paper P=4 G=4 OS=4"));

// The recorded groups carry out what they record: training gives what it gives over threads.
TEST(RecordedNccl, Trains) {
  std::map<std::string, at::Tensor> want;
  const auto train = [](const LiveMesh& mesh) {
    SmallModel model(mesh, "P=2x1 G=2x1 OS=2x2");
    AdamW opt(model.core, {{.lr = 0.01}}, {});
    for (int i = 0; i < 3; ++i) {
      model.Backward(mesh, 2);
      opt.Step();
    }
    std::map<std::string, at::Tensor> out;
    for (const auto& [name, state] : model.core->States()) out[name] = state.param.FullTensor();
    return out;
  };
  std::mutex mutex;
  testing::OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    const auto mine = train(mesh);
    std::lock_guard lock(mutex);
    want = mine;
  });
  NcclRecorder recorder;
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) {
    for (const auto& [name, value] : train(mesh)) {
      EXPECT_TRUE(at::allclose(value, want.at(name), 1e-5, 1e-6)) << name;
    }
  });
}

TEST(RecordedNccl, AFailureOnTheDeviceReachesTheTrainingStep) {
  NcclRecorder recorder;
  recorder.failure = [](const NcclCall& c) {
    return c.role == "reduce" ? "watchdog: timed out" : "";
  };
  OnRecordedMesh(recorder, {2, 2}, [&](const LiveMesh& mesh) {
    SmallModel model(mesh, "hsdp");
    try {
      model.Backward(mesh, 1);
      model.core->SummarizeGradients();
      ADD_FAILURE() << "no error";
    } catch (const std::exception& e) {
      const std::string what = e.what();
      EXPECT_NE(what.find("watchdog: timed out"), std::string::npos) << what;
      EXPECT_NE(what.find("role reduce"), std::string::npos) << what;
      EXPECT_NE(what.find("for unit '"), std::string::npos) << what;
    }
  });
}

}  // namespace
}  // namespace lins
