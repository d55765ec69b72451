// Wrong input is an error that names it, on every rank, and never a hang: among threads and over
// sockets.
#include <algorithm>
#include <chrono>
#include <latch>

#include "placement/redistribution.h"
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

using Transport = void (*)(int64_t, const std::function<void(World&)>&, double);

// What fn throws on each rank of a mesh, "" where it does not.
std::vector<std::string> ErrorsOf(Transport run, const Sizes& shape,
                                  const std::function<void(const LiveMesh&)>& fn,
                                  double timeout = 20.0) {
  const int64_t ranks = shape[0] * shape[1];
  std::vector<std::string> out(ranks);
  std::latch all(ranks);  // a world that is gone has closed its connections
  run(
      ranks,
      [&](World& world) {
        // The world outlives the call: it is the runner's.
        const std::shared_ptr<World> shared(&world, [](World*) {});
        const LiveMesh mesh = LiveMesh::Create(shared, shape, {"node", "gpu"});
        out[world.rank()] = ErrorOf([&] { fn(mesh); });
        all.arrive_and_wait();
      },
      timeout);
  return out;
}

class BadInput : public ::testing::TestWithParam<Transport> {
 protected:
  static void ExpectOnEveryRank(const std::string& part,
                                const std::function<void(const LiveMesh&)>& fn,
                                const Sizes& shape = {2, 2}) {
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& error : ErrorsOf(GetParam(), shape, fn)) {
      EXPECT_NE(error, "") << "a rank without the error '" << part << "'";
      EXPECT_NE(error.find(part), std::string::npos) << error;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 5) << "found only at the time-out: " << part;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, BadInput, ::testing::Values(&RunWorlds, &RunGloo),
                         [](const auto& info) { return info.index == 0 ? "threads" : "gloo"; });

DTensor Rows(const LiveMesh& mesh) {
  return DTensor::Distribute(at::arange(8.0).view({4, 2}), mesh, "S0(gpu)");
}

TEST_P(BadInput, AnotherMeshIsNamedBesideTheOwn) {
  ExpectOnEveryRank("meshes: Mesh(node=2, gpu=2) and Mesh(gpu=4)", [](const LiveMesh& mesh) {
    const Mesh other = ValueOrThrow(Mesh::Create({4}, {"gpu"}));
    Rows(mesh).Redistribute(ValueOrThrow(Layout::Parse("S0(gpu)", {4, 2}, other)));
  });
}

TEST_P(BadInput, AxesThatAreUnknownOrRepeated) {
  ExpectOnEveryRank("unknown axis 'x': Mesh(node=2, gpu=2) has node, gpu",
                    [](const LiveMesh& mesh) { Rows(mesh).Redistribute("S0(x)"); });
  ExpectOnEveryRank("axis 'gpu' is used twice",
                    [](const LiveMesh& mesh) { Rows(mesh).Redistribute("S0(gpu) S1(gpu)"); });
  ExpectOnEveryRank("axis 'gpu' is used twice",
                    [](const LiveMesh& mesh) { Rows(mesh).Redistribute("S0(gpu) +sum(gpu)"); });
  ExpectOnEveryRank("axis 'gpu' is used twice", [](const LiveMesh& mesh) {
    DTensor::Distribute(at::ones({4}), mesh, "S0(gpu,gpu)");
  });
}

TEST_P(BadInput, ADimensionOutOfRange) {
  ExpectOnEveryRank("S2 is outside the tensor's dimensions: shape (4, 2) has 2",
                    [](const LiveMesh& mesh) { Rows(mesh).Redistribute("S2(gpu)"); });
  ExpectOnEveryRank("dimension 2 is outside shape (4, 2): legal are -2 to 1",
                    [](const LiveMesh& mesh) { Sum(Rows(mesh), {2}); });
}

TEST_P(BadInput, LocalShapesThatDisagreeAreListed) {
  ExpectOnEveryRank("local shapes (3, 2), (3, 3), (3, 4), (3, 5) fit no tensor under S1(node,gpu)",
                    [](const LiveMesh& mesh) {
                      DTensor::FromLocal(at::zeros({3, mesh.rank() + 2}), mesh, "S1(node,gpu)");
                    });
  ExpectOnEveryRank("ranks disagree about the number of dimensions", [](const LiveMesh& mesh) {
    DTensor::FromLocal(at::zeros(Sizes(1 + mesh.rank() % 2, 2)), mesh, "S0(gpu)");
  });
  ExpectOnEveryRank("fit no tensor under R", [](const LiveMesh& mesh) {
    DTensor::FromLocal(at::zeros({mesh.rank() == 3 ? 2 : 1}), mesh, "R");
  });
}

TEST_P(BadInput, TypesThatDisagreeAreNamed) {
  ExpectOnEveryRank(
      "ranks disagree about the dtype of local tensors: rank 0 has Float, rank 3 has "
      "Double",
      [](const LiveMesh& mesh) {
        const auto dtype = mesh.rank() == 3 ? at::kDouble : at::kFloat;
        DTensor::FromLocal(at::zeros({2}, dtype), mesh, "S0(gpu)");
      });
}

TEST_P(BadInput, TensorsToDistributeFromOneRankMustAgreeInShapeAndType) {
  ExpectOnEveryRank("ranks disagree about the tensor to distribute", [](const LiveMesh& mesh) {
    DTensor::Distribute(at::zeros({4 + mesh.rank()}), mesh, "S0(gpu)", 0);
  });
  ExpectOnEveryRank("ranks disagree about the tensor to distribute", [](const LiveMesh& mesh) {
    const auto dtype = mesh.rank() == 1 ? at::kDouble : at::kFloat;
    DTensor::Distribute(at::zeros({4}, dtype), mesh, "S0(gpu)", 0);
  });
  ExpectOnEveryRank("ranks disagree about the tensor to distribute", [](const LiveMesh& mesh) {
    DTensor::Distribute(at::zeros({4}), mesh, "S0(gpu)", mesh.rank() == 2 ? 1 : 0);
  });
  ExpectOnEveryRank("src_rank 4 is outside Mesh(node=2, gpu=2)", [](const LiveMesh& mesh) {
    DTensor::Distribute(at::zeros({4}), mesh, "S0(gpu)", 4);
  });
}

TEST_P(BadInput, APartialOfAnotherOperation) {
  ExpectOnEveryRank(
      "cannot turn +sum(gpu) into +max(gpu): partial sum is not partial max",
      [](const LiveMesh& mesh) { Rows(mesh).Redistribute("+sum(gpu)").Redistribute("+max(gpu)"); });
  ExpectOnEveryRank("cannot turn S0(gpu) into +product(gpu): a partial product cannot be made",
                    [](const LiveMesh& mesh) { Rows(mesh).Redistribute("+product(gpu)"); });
  ExpectOnEveryRank("cannot reduce Long with avg", [](const LiveMesh& mesh) {
    DTensor::FromLocal(at::ones({4}, at::kLong), mesh, "+avg(gpu)", Shape{4}).FullTensor();
  });
}

TEST_P(BadInput, ACapTooSmallNamesTheLeastThatWorks) {
  ExpectOnEveryRank(
      "max_peak_bytes=20 is too small for S0(gpu) -> R of (4, 2): the least possible "
      "is 48",
      [](const LiveMesh& mesh) {
        const Layout rows = Rows(mesh).layout();
        PlanOptions options;
        options.max_peak_bytes = 20;
        ValueOrThrow(PlanRedistribution(rows, Layout::Replicated({4, 2}, mesh), 4, options));
      },
      {1, 2});
}

TEST_P(BadInput, MeshesThatDisagreeOrDoNotFitTheWorld) {
  ExpectOnEveryRank("ranks disagree about the mesh: rank 0 has Mesh(a=4), rank 3 has Mesh(b=4)",
                    [](const LiveMesh& mesh) {
                      const char* name = mesh.rank() == 3 ? "b" : "a";
                      LiveMesh::Create(mesh.world_ptr(), {4}, {name});
                    });
  ExpectOnEveryRank("Mesh(a=3) has 3 ranks, the world has 4",
                    [](const LiveMesh& mesh) { LiveMesh::Create(mesh.world_ptr(), {3}, {"a"}); });
}

// Where nothing is communicated nothing can be compared. The first collective then fails on every
// rank: at once among threads, at the time-out over sockets; no process ends, no value is wrong.
TEST_P(BadInput, WhatRanksDisagreeAboutWithoutACollectiveTheFirstCollectiveRefuses) {
  const std::function<void(const LiveMesh&)> mistakes[] = {
      [](const LiveMesh& mesh) {  // another shape: more to receive than there is room for
        DTensor::Distribute(at::ones({8 + 2 * mesh.rank()}), mesh, "S0(gpu)").FullTensor();
      },
      [](const LiveMesh& mesh) {  // another type
        const auto dtype = mesh.rank() == 1 ? at::kDouble : at::kFloat;
        DTensor::Distribute(at::ones({8}, dtype), mesh, "S0(gpu)").FullTensor();
      },
      [](const LiveMesh& mesh) {  // another operation
        const char* layout = mesh.rank() == 1 ? "+max(gpu)" : "+sum(gpu)";
        DTensor::FromLocal(at::ones({8}), mesh, layout, Shape{8}).FullTensor();
      },
      [](const LiveMesh& mesh) {  // another way
        const DTensor x = DTensor::Distribute(at::ones({8}), mesh, "S0(gpu)");
        x.Redistribute(mesh.rank() == 1 ? "O(gpu; 0)" : "R").FullTensor();
      }};
  for (const auto& mistake : mistakes) {
    for (const std::string& error : ErrorsOf(GetParam(), {1, 2}, mistake, 1.0)) {
      const char* known[] = {"ranks disagree", "calls another operation, or for another unit",
                             "given up waiting: see its own error"};
      EXPECT_TRUE(std::any_of(std::begin(known), std::end(known), [&](const char* part) {
        return error.find(part) != std::string::npos;
      })) << error;
    }
  }
}

}  // namespace
}  // namespace lins::testing
