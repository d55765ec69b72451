// In-place forms keep memory and layout, or are refused before anything changes.
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

class InPlace : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, InPlace, kMeshes, MeshName);

TEST_P(InPlace, TheOtherOperandGoesToTheLayoutOfTheFirst) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& shape : {Sizes{5}, Sizes{3, 5}, Sizes{0}}) {
      const at::Tensor a = Whole(shape, 0, at::kDouble), b = Whole(shape, 1, at::kDouble) + 20;
      for (const std::string& p : LayoutsOf(static_cast<int64_t>(shape.size()))) {
        if (p.find('+') != std::string::npos) continue;
        for (const std::string& q : LayoutsOf(static_cast<int64_t>(shape.size()))) {
          const DTensor x = Place(a, mesh, p), y = Place(b, mesh, q);
          const void* memory = x.ToLocal().data_ptr();
          const Layout layout = x.layout();
          BinaryInPlace(BinaryOp::kAdd, x, y);
          BinaryInPlace(BinaryOp::kMul, x, y);
          BinaryInPlace(BinaryOp::kSub, x, c10::Scalar(1));
          BinaryInPlace(BinaryOp::kDiv, x, c10::Scalar(2));
          EXPECT_EQ(x.ToLocal().data_ptr(), memory);
          EXPECT_EQ(x.layout(), layout);
          EXPECT_TRUE(Same(x, ((a + b) * b - 1) / 2)) << p << ", " << q;
        }
      }
    }
  });
}

TEST_P(InPlace, PendingSumsTakeScalingAndWhatIsPendingAlike) {
  Run([](const LiveMesh& mesh) {
    const at::Tensor a = Whole({4, 3}, 0, at::kDouble), b = Whole({4, 3}, 1, at::kDouble);
    for (const char* layout : {"+sum(gpu)", "S0(gpu) +sum(node)"}) {
      const DTensor x = Place(a, mesh, layout), y = Place(b, mesh, layout);
      EXPECT_EQ(Collectives(mesh,
                            [&] {
                              BinaryInPlace(BinaryOp::kMul, x, c10::Scalar(2));
                              BinaryInPlace(BinaryOp::kAdd, x, y);
                              BinaryInPlace(BinaryOp::kSub, x, y);
                              BinaryInPlace(BinaryOp::kDiv, x, c10::Scalar(4));
                            }),
                Strings());
      EXPECT_TRUE(Same(x, a / 2));
    }
  });
}

TEST(InPlaceRefusals, WhatWouldChangeLayoutShapeOrTypeIsAnErrorAndChangesNothing) {
  OnMesh({2, 2}, [](const LiveMesh& mesh) {
    const at::Tensor a = Whole({4, 3}, 0, at::kDouble);
    const DTensor pending = Place(a, mesh, "+sum(gpu)"), whole = Place(a, mesh, "R");
    ExpectError([&] { BinaryInPlace(BinaryOp::kAdd, pending, c10::Scalar(1)); },
                "in-place add on +sum(gpu) of (4, 3)");
    ExpectError([&] { BinaryInPlace(BinaryOp::kAdd, pending, whole); }, "not R of (4, 3)");
    ExpectError([&] { BinaryInPlace(BinaryOp::kMul, pending, pending); }, "pending");
    const DTensor max = Place(a, mesh, "+max(gpu)");
    ExpectError([&] { BinaryInPlace(BinaryOp::kMul, max, c10::Scalar(2)); }, "+max(gpu)");
    ExpectError([&] { BinaryInPlace(BinaryOp::kAdd, max, max); }, "+max(gpu)");
    const DTensor taller = Place(Whole({2, 4, 3}, 0, at::kDouble), mesh, "R");
    ExpectError([&] { BinaryInPlace(BinaryOp::kAdd, whole, taller); }, "(2, 4, 3)");
    const DTensor ints = Place(Whole({4, 3}), mesh, "S0(gpu)");
    ExpectError([&] { BinaryInPlace(BinaryOp::kMul, ints, c10::Scalar(0.5)); }, "Long");
    EXPECT_TRUE(Same(pending, a) && Same(whole, a) && Same(max, a) && Same(ints, Whole({4, 3})));
  });
}

}  // namespace
}  // namespace lins::testing
