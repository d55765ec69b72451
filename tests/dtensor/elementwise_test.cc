// Elementwise operations equal those of the whole tensors; which layouts they keep, and when they
// communicate.
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

constexpr BinaryOp kOps[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv,
                             BinaryOp::kEq,  BinaryOp::kNe,  BinaryOp::kLt,  BinaryOp::kLe,
                             BinaryOp::kGt,  BinaryOp::kGe};

template <typename A, typename B>
at::Tensor Plain(BinaryOp op, const A& a, const B& b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
    case BinaryOp::kEq:
      return a == b;
    case BinaryOp::kNe:
      return a != b;
    case BinaryOp::kLt:
      return a < b;
    case BinaryOp::kLe:
      return a <= b;
    case BinaryOp::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

class Elementwise : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, Elementwise, kMeshes, MeshName);

TEST_P(Elementwise, EveryPairOfLayoutsGivesTheResultOfTheWholeTensors) {
  Run([](const LiveMesh& mesh) {
    int turn = 0;
    for (const Sizes& shape : {Sizes{5}, Sizes{8}, Sizes{1}, Sizes{0}, Sizes{3, 5}, Sizes{4, 4},
                               Sizes{5, 1}, Sizes{2, 0}, Sizes{}}) {
      const at::Tensor a = Whole(shape), b = Whole(shape, 1);
      const at::Tensor divisor = b * b + 1;
      const auto layouts = LayoutsOf(static_cast<int64_t>(shape.size()));
      for (const std::string& p : layouts) {
        const DTensor x = Place(a, mesh, p);
        for (const std::string& q : layouts) {
          const BinaryOp op = kOps[turn++ % 10];
          const at::Tensor& other = op == BinaryOp::kDiv ? divisor : b;
          EXPECT_TRUE(Same(Binary(op, x, Place(other, mesh, q)), Plain(op, a, other)))
              << p << " and " << q << ", operation " << static_cast<int>(op);
        }
      }
    }
  });
}

TEST_P(Elementwise, ScalarsAndUnaryOperationsAreThoseOfTheWholeTensor) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& shape : {Sizes{5}, Sizes{0}, Sizes{3, 5}, Sizes{}}) {
      const at::Tensor a = Whole(shape);
      for (const std::string& p : LayoutsOf(static_cast<int64_t>(shape.size()))) {
        const DTensor x = Place(a, mesh, p);
        for (BinaryOp op : kOps) {
          const c10::Scalar two(2);
          EXPECT_TRUE(Same(Binary(op, x, two), Plain(op, a, two))) << p;
          if (op != BinaryOp::kDiv) {
            EXPECT_TRUE(Same(Binary(op, two, x), Plain(op, at::full_like(a, 2), a))) << p;
          }
        }
        EXPECT_TRUE(Same(Neg(x), -a)) << p;
        EXPECT_TRUE(Same(Abs(x), a.abs())) << p;
        EXPECT_TRUE(Same(To(x, at::kDouble), a.to(at::kDouble))) << p;
        EXPECT_TRUE(Same(Clone(x), a) && Clone(x).layout() == x.layout()) << p;
        EXPECT_TRUE(Same(Reduced(x), a) && !Reduced(x).layout().IsPartial()) << p;
      }
    }
  });
}

TEST_P(Elementwise, ShapesBroadcastUnderEveryPairOfLayouts) {
  Run([](const LiveMesh& mesh) {
    const std::pair<Sizes, Sizes> shapes[] = {
        {{5, 3}, {3}}, {{5, 3}, {1, 3}}, {{5, 1}, {1, 3}}, {{3}, {}}, {{2, 4, 3}, {4, 1}}};
    for (const auto& [left, right] : shapes) {
      const at::Tensor a = Whole(left), b = Whole(right, 1);
      for (const std::string& p : LayoutsOf(static_cast<int64_t>(left.size()))) {
        for (const std::string& q : LayoutsOf(static_cast<int64_t>(right.size()))) {
          EXPECT_TRUE(Same(Sub(Place(a, mesh, p), Place(b, mesh, q)), a - b)) << p << ", " << q;
          EXPECT_TRUE(Same(Mul(Place(b, mesh, q), Place(a, mesh, p)), b * a)) << p << ", " << q;
        }
      }
    }
  });
}

// A row of the table in docs/dtensor.md.
struct Row {
  const char *a, *b;
  const char* result;
  Strings collectives;
};

void ExpectRows(BinaryOp op, const std::vector<Row>& rows) {
  OnMesh({2, 2}, [&](const LiveMesh& mesh) {
    const at::Tensor a = Whole({4, 6}, 0, at::kDouble), b = Whole({4, 6}, 1, at::kDouble);
    for (const Row& row : rows) {
      const DTensor x = Place(a, mesh, row.a), y = Place(b, mesh, row.b);
      std::optional<DTensor> z;
      EXPECT_EQ(Collectives(mesh, [&] { z = Binary(op, x, y); }), row.collectives)
          << row.a << ", " << row.b;
      EXPECT_EQ(z->layout().ToString(), row.result) << row.a << ", " << row.b;
      EXPECT_TRUE(Same(*z, Plain(op, a, b))) << row.a << ", " << row.b;
    }
  });
}

TEST(ElementwiseRules, OfOneLayoutOrWithAReplicatedOneNothingIsCommunicated) {
  for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kMul, BinaryOp::kGt}) {
    ExpectRows(op, {{"S0(gpu)", "S0(gpu)", "S0(gpu)", {}},
                    {"F(gpu)", "F(gpu)", "F(gpu)", {}},
                    {"O(gpu; 1)", "O(gpu; 1)", "O(gpu; 1)", {}},
                    {"S0(gpu) S1(node)", "R", "S0(gpu) S1(node)", {}},
                    {"R", "F(gpu,node)", "F(gpu,node)", {}},
                    {"O(gpu; 0)", "R", "O(gpu; 0)", {}}});
  }
}

TEST(ElementwiseRules, OfTwoSplitsOneOperandMovesTheOneThatReceivesLess) {
  ExpectRows(BinaryOp::kAdd, {{"S0(gpu)", "S1(gpu)", "S0(gpu)", {"all_to_all"}},
                              {"S0(gpu)", "S0(gpu,node)", "S0(gpu,node)", {}},
                              {"S0(gpu,node)", "S0(gpu)", "S0(gpu,node)", {}},
                              {"F(gpu)", "O(gpu; 1)", "F(gpu)", {"exchange"}}});
}

TEST(ElementwiseRules, APendingOperandIsReducedIntoTheSplitOfTheOther) {
  for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kMul, BinaryOp::kLt}) {
    ExpectRows(op, {{"+sum(gpu)", "S0(gpu)", "S0(gpu)", {"reduce_scatter"}},
                    {"S0(gpu)", "+sum(gpu)", "S0(gpu)", {"reduce_scatter"}},
                    {"S0(gpu) +sum(node)", "S0(gpu)", "S0(gpu)", {"all_reduce"}}});
  }
}

TEST(ElementwiseRules, SumsThatArePendingAlikeAreAddedAsTheyAre) {
  for (BinaryOp op : {BinaryOp::kAdd, BinaryOp::kSub}) {
    ExpectRows(op, {{"+sum(gpu)", "+sum(gpu)", "+sum(gpu)", {}},
                    {"+avg(node,gpu)", "+avg(node,gpu)", "+avg(node,gpu)", {}},
                    {"S0(gpu) +sum(node)", "S0(gpu) +sum(node)", "S0(gpu) +sum(node)", {}}});
  }
  ExpectRows(BinaryOp::kMul, {{"+sum(gpu)", "+sum(gpu)", "R", {"all_reduce", "all_reduce"}}});
  ExpectRows(BinaryOp::kAdd, {{"+max(gpu)", "+max(gpu)", "R", {"all_reduce", "all_reduce"}}});
}

TEST(ElementwiseRules, ScalingLeavesSumsAndAveragesPendingAndAllElseReduces) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const at::Tensor a = Whole({4, 6}, 0, at::kDouble) + 20;
    const c10::Scalar two(2);
    for (const char* layout : {"+sum(gpu)", "+avg(gpu)", "S1(node) +sum(gpu)"}) {
      const DTensor x = Place(a, mesh, layout);
      const Strings none = Collectives(mesh, [&] {
        for (const DTensor& y : {Mul(x, two), Mul(two, x), Div(x, two), Neg(x)}) {
          EXPECT_EQ(y.layout(), x.layout());
        }
      });
      EXPECT_EQ(none, Strings());
      EXPECT_TRUE(Same(Div(x, two), a / 2) && Same(Neg(x), -a) && Same(Mul(two, x), a * 2));
      const std::function<DTensor()> reducing[] = {
          [&] { return Add(x, two); },      [&] { return Sub(two, x); },
          [&] { return Div(two, x); },      [&] { return Abs(x); },
          [&] { return Norm(x); },          [&] { return Max(x); },
          [&] { return Min(x); },           [&] { return ArgMax(x); },
          [&] { return Mul(x, x); },        [&] { return Binary(BinaryOp::kLt, x, two); },
          [&] { return To(x, at::kFloat); }};
      for (const auto& fn : reducing) {
        std::optional<DTensor> y;
        const Strings kinds = Collectives(mesh, [&] { y = fn(); });
        ASSERT_FALSE(kinds.empty());
        EXPECT_EQ(kinds[0], "all_reduce");
      }
    }
    const DTensor max = Place(a, mesh, "+max(gpu)");
    EXPECT_EQ(Collectives(mesh, [&] { EXPECT_TRUE(Same(Mul(max, two), a * 2)); }),
              Strings{"all_reduce"});
  });
}

TEST(ElementwiseRules, TypesPromoteAsInTorch) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    for (at::ScalarType p : {at::kInt, at::kFloat, at::kDouble, at::kBool, at::kHalf}) {
      for (at::ScalarType q : {at::kInt, at::kFloat, at::kDouble, at::kBool, at::kHalf}) {
        for (const Sizes& right : {Sizes{3}, Sizes{}}) {
          const at::Tensor a = at::ones({3}, p), b = at::ones(right, q);
          const DTensor x = Place(a, mesh, "S0(gpu)"), y = Place(b, mesh, "R");
          EXPECT_TRUE(Same(Add(x, y), a + b));
          EXPECT_TRUE(Same(Div(y, x), b / a));
        }
      }
      const DTensor x = Place(at::ones({3}, p), mesh, "S0(gpu)");
      EXPECT_TRUE(Same(Mul(x, c10::Scalar(2.5)), at::ones({3}, p) * 2.5));
      EXPECT_TRUE(Same(Mul(x, c10::Scalar(2)), at::ones({3}, p) * 2));
    }
  });
}

TEST(ElementwiseRules, MistakesNameBothSides) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Place(Whole({4, 6}), mesh, "S0(gpu)"), y = Place(Whole({4}), mesh, "R");
    ExpectError([&] { Add(x, y); },
                "add: shapes (4, 6) and (4,) do not broadcast: sizes 6 and 4 at dimension 1");
    const LiveMesh other = LiveMesh::Create(mesh.world_ptr(), {2, 1}, {"p", "q"});
    const DTensor z = DTensor::Distribute(Whole({4, 6}), other, "R");
    ExpectError(
        [&] { Mul(x, z); },
        "mul: the operands live on different meshes, Mesh(node=1, gpu=2) and Mesh(p=2, q=1)");
    ExpectError([&] { Binary(BinaryOp::kAdd, c10::Scalar(1), c10::Scalar(2)); },
                "add: neither operand is a DTensor");
  });
}

}  // namespace
}  // namespace lins::testing
