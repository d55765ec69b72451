// Small inputs that broke other systems, with the right answers. Each test's name is the behaviour;
// the number is that of the case.
#include "placement/redistribution.h"
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

at::Tensor Range(const Sizes& shape) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return at::arange(n, at::kFloat).view(shape);
}

// As OnMesh, with axes of any names and number.
void OnAxes(const Sizes& shape, const std::vector<std::string>& axes,
            const std::function<void(const LiveMesh&)>& fn) {
  int64_t ranks = 1;
  for (int64_t n : shape) ranks *= n;
  RunWorlds(ranks, [&](World& world) {
    fn(LiveMesh::Create(std::shared_ptr<World>(&world, [](World*) {}), shape, axes));
  });
}

// The sizes of dimension 0 of all local tensors.
Sizes Rows(const DTensor& x) {
  Sizes out;
  for (int64_t r = 0; r < x.mesh().size(); ++r) out.push_back(x.layout().LocalShape(r)[0]);
  EXPECT_EQ(x.ToLocal().size(0), out[x.mesh().rank()]);
  return out;
}

TEST(KnownCases, Case1_FiveRowsOverTwoByTwoComeBackOnceEach) {
  OnAxes({2, 2}, {"a", "b"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({5, 3}), mesh, "S0(a,b)");
    EXPECT_EQ(Rows(x), (Sizes{2, 1, 1, 1}));
    const int64_t first[] = {0, 2, 3, 4};
    EXPECT_EQ(x.ToLocal()[0][0].item<float>(), 3 * first[mesh.rank()]);
    EXPECT_TRUE(Same(x.Redistribute("R"), Range({5, 3})));
  });
}

TEST(KnownCases, Case2_UnevenRowsComeBackInTheirShape) {
  OnAxes({4}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({5, 10}), mesh, "R").Redistribute("S0(a)");
    EXPECT_EQ(Rows(x), (Sizes{2, 2, 1, 0}));
    EXPECT_TRUE(Same(x.Redistribute("R"), Range({5, 10})));
  });
}

TEST(KnownCases, Case3_ASplitChangesDimensionByOneAllToAllOnItsOwnAxis) {
  OnAxes({2, 2}, {"a", "b"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({4, 8, 8}), mesh, "S1(a,b)");
    const DTensor y = x.Redistribute("S1(a) S2(b)");
    EXPECT_EQ(Collectives(mesh, [&] { x.Redistribute("S1(a) S2(b)"); }), Strings{"all_to_all"});
    EXPECT_EQ((*CachedPlan(x.layout(), y.layout(), 4))->steps[0].axes,
              ValueOrThrow(mesh.ParseAxes("b")));
    EXPECT_TRUE(Same(y, Range({4, 8, 8})));
  });
}

TEST(KnownCases, Case4_AShardOfColumnsIsContiguous) {
  OnAxes({2}, {"a"}, [](const LiveMesh& mesh) {
    const at::Tensor local = DTensor::Distribute(Range({3, 9}), mesh, "S1(a)").ToLocal();
    if (mesh.rank() == 0) return;
    EXPECT_EQ(local.sizes().vec(), (Sizes{3, 4}));
    EXPECT_EQ(local.strides().vec(), (Sizes{4, 1}));
    EXPECT_TRUE(at::equal(local, Range({3, 9}).narrow(1, 5, 4)));
  });
}

TEST(KnownCases, Case5_ColumnsThatFitNoSplitAreAnErrorUnlessTheShapeIsGivenAndFits) {
  OnAxes({4}, {"a"}, [](const LiveMesh& mesh) {
    const at::Tensor local = at::zeros({3, mesh.rank() + 2});
    ExpectError([&] { DTensor::FromLocal(local, mesh, "S1(a)"); },
                "local shapes (3, 2), (3, 3), (3, 4), (3, 5) fit no tensor under S1(a)");
    if (mesh.rank() != 2) {  // 14 columns would be 4, 4, 4, 2
      ExpectError(
          [&] {
            DTensor::FromLocal(local, mesh, "S1(a)", Shape{3, 14});
          },
          "does not fit S1(a) of (3, 14)");
    }
    const int64_t fits[] = {4, 4, 4, 2};
    const at::Tensor mine = at::full({3, fits[mesh.rank()]}, mesh.rank());
    const DTensor x = DTensor::FromLocal(mine, mesh, "S1(a)", Shape{3, 14});
    EXPECT_EQ(x.FullTensor()[0][13].item<float>(), 3);
  });
}

TEST(KnownCases, Case6_RowsAreCountedOnAllRanks) {
  OnAxes({4}, {"a"}, [](const LiveMesh& mesh) {
    const int64_t rows[] = {3, 3, 3, 1};
    const at::Tensor local = at::full({rows[mesh.rank()], 2}, static_cast<float>(mesh.rank()));
    const DTensor x = DTensor::FromLocal(local, mesh, "S0(a)");
    EXPECT_EQ(x.shape(), (Shape{10, 2}));
    EXPECT_EQ(x.FullTensor()[9][0].item<float>(), 3);
    EXPECT_EQ(x.FullTensor()[8][0].item<float>(), 2);
  });
}

TEST(KnownCases, Case7_512RowsOver30RanksLeaveOneEmptyAtTheEnd) {
  OnAxes({30}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({512}), mesh, "S0(a)");
    Sizes want(28, 18);
    want.push_back(8);
    want.push_back(0);
    EXPECT_EQ(Rows(x), want);
    EXPECT_EQ(x.layout().RangesOf(29)[0], (lins::Range{512, 512}));
    EXPECT_TRUE(Same(x, Range({512})));
  });
}

TEST(KnownCases, Case8_TwoElementsOverTwoByFourLeaveSixEmptyAtTwo) {
  OnAxes({2, 4}, {"a", "b"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({2}), mesh, "S0(a,b)");
    int64_t full = 0;
    for (int64_t r = 0; r < 8; ++r) {
      const auto [begin, end] = x.layout().RangesOf(r)[0];
      full += end > begin;
      EXPECT_TRUE(begin < end || begin == 2);
    }
    EXPECT_EQ(full, 2);
    EXPECT_TRUE(Same(x, Range({2})));
  });
}

TEST(KnownCases, Case9_ARankWithoutRowsJoinsEachCollective) {
  OnAxes({8}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({20, 2}), mesh, "S0(a)");
    EXPECT_EQ(Rows(x), (Sizes{3, 3, 3, 3, 3, 3, 2, 0}));
    EXPECT_EQ(Collectives(mesh, [&] { x.Redistribute("R"); }), Strings{"all_gather"});
    EXPECT_EQ(Collectives(mesh, [&] { x.Redistribute("S1(a)"); }), Strings{"all_to_all"});
    const DTensor sum = Place(Range({20, 2}), mesh, "+sum(a)");
    // An even split comes first, as it receives less; the empty rank takes part in both steps.
    EXPECT_EQ(Collectives(mesh, [&] { sum.Redistribute("S0(a)"); }),
              (Strings{"reduce_scatter", "exchange"}));
    EXPECT_EQ(Collectives(mesh, [&] { Norm(x); }), Strings{"all_reduce"});
    EXPECT_TRUE(Same(sum.Redistribute("S0(a)"), Range({20, 2})));
  });
}

TEST(KnownCases, Case10_SixNestedTwoByTwoIsNotSixOverFour) {
  OnAxes({2, 2}, {"a", "b"}, [](const LiveMesh& mesh) {
    EXPECT_EQ(Rows(DTensor::Distribute(Range({6}), mesh, "S0(a,b)")), (Sizes{2, 1, 2, 1}));
  });
  OnAxes({4}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor one = DTensor::Distribute(Range({6}), mesh, "S0(a)");
    const DTensor nested = DTensor::Distribute(Range({6}), mesh, "S0(a:2@2,a:2)");
    EXPECT_EQ(Rows(one), (Sizes{2, 2, 2, 0}));
    EXPECT_EQ(Rows(nested), (Sizes{2, 1, 2, 1}));
    EXPECT_FALSE(one.layout() == nested.layout());
    EXPECT_TRUE(Same(nested.Redistribute(one.layout()), Range({6})));
  });
}

TEST(KnownCases, Case11_AnEmbeddingSplitByOneAxisInsideAnotherKeepsItsRows) {
  OnAxes({2, 2}, {"a", "b"}, [](const LiveMesh& mesh) {
    for (const char* layout : {"S0(a,b)", "S0(b,a)"}) {
      const DTensor x = DTensor::Distribute(Range({4, 1}), mesh, layout);
      EXPECT_TRUE(Same(x, Range({4, 1}))) << layout;
      EXPECT_TRUE(Same(x.Redistribute("S0(b)"), Range({4, 1}))) << layout;
    }
  });
}

TEST(KnownCases, Case12_AnotherMeshIsAnErrorThatNamesBoth) {
  OnAxes({2, 2}, {"a", "b"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({8}), mesh, "S0(a)");
    const Mesh other = ValueOrThrow(Mesh::Create({4, 1}, {"a", "b"}));
    ExpectError([&] { x.Redistribute(ValueOrThrow(Layout::Parse("S0(a)", {8}, other))); },
                "Mesh(a=2, b=2) and Mesh(a=4, b=1)");
  });
}

TEST(KnownCases, Case13_ASplitThatMovesBesideAnotherNeverReplicates) {
  OnAxes({4, 2}, {"x", "y"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({16, 16, 16}), mesh, "S0(y) S2(x)");
    const DTensor y = x.Redistribute("S2(x,y)");
    EXPECT_TRUE(Same(y, Range({16, 16, 16})));
    const RedistributionPlan& plan = **CachedPlan(x.layout(), y.layout(), 4);
    const int64_t share = 16 * 16 * 16 / 8 * 4;
    for (const Step& s : plan.steps) EXPECT_LE(s.out_bytes, share);
    EXPECT_EQ(plan.peak_bytes, 2 * share);  // the source's and the destination's, nothing larger
  });
}

TEST(KnownCases, Case14_ASumIsReducedBeforeTenIsAdded) {
  OnAxes({2}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(at::arange(10), mesh, "S0(a)");
    EXPECT_EQ(Item(Add(Sum(x), c10::Scalar(10))).toLong(), 55);
  });
}

TEST(KnownCases, Case15_TheNormOfAPartialIsThatOfItsSum) {
  OnAxes({2}, {"a"}, [](const LiveMesh& mesh) {
    const at::Tensor parts = at::tensor({1.f, 3.f, 2.f, 1.f}).view({2, 2});
    EXPECT_EQ(Item(Norm(DTensor::FromLocal(parts[mesh.rank()], mesh, "+sum(a)"))).toDouble(), 5);
  });
}

TEST(KnownCases, Case16_TheMeanOfUnevenShardsCountsElementsNotShards) {
  OnAxes({2}, {"a"}, [](const LiveMesh& mesh) {
    EXPECT_EQ(Item(Mean(DTensor::Distribute(Range({3, 4}), mesh, "S0(a)"))).toDouble(), 5.5);
  });
}

TEST(KnownCases, Case17_ArgmaxIsAnIndexOfTheWholeTensor) {
  OnAxes({2}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(at::tensor({10, 5, 3, 8}), mesh, "S0(a)");
    EXPECT_EQ(Item(ArgMax(x)).toLong(), 0);
  });
}

TEST(KnownCases, Case18_ReplicatedToAnAverageIsTheIdentityAndToAProductAnError) {
  OnAxes({2}, {"a"}, [](const LiveMesh& mesh) {
    const DTensor x = DTensor::Distribute(Range({4}), mesh, "R");
    EXPECT_TRUE(at::equal(x.Redistribute("+avg(a)").ToLocal(), Range({4})));
    EXPECT_TRUE(Same(x.Redistribute("+avg(a)"), Range({4})));
    ExpectError([&] { x.Redistribute("+product(a)"); }, "cannot turn R into +product(a)");
  });
}

TEST(KnownCases, Case19_TwoPartialAxesOfFortyRanksReduceToTheSameBitsEverywhere) {
  std::vector<at::Tensor> results(40);
  OnAxes({8, 5, 1}, {"a", "b", "c"}, [&](const LiveMesh& mesh) {
    at::Tensor mine = at::arange(257, at::kFloat) * 0.1f + 1.0f / (3.0f + mesh.rank());
    mine = mine.sin() * 1e3f;  // sums of these depend on the order
    results[mesh.rank()] = DTensor::FromLocal(mine, mesh, "+sum(a) +sum(b)").FullTensor();
  });
  for (const at::Tensor& t : results) EXPECT_TRUE(at::equal(t, results[0]));
}

}  // namespace
}  // namespace lins::testing
