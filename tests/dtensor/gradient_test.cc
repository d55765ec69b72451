// Gradients equal those of one process, and have the layouts that gradient.h says.
#include "dtensor/gradient.h"

#include <torch/csrc/autograd/variable.h>

#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

const char* const kComplete[] = {"R",           "S0(gpu)",  "S1(node,gpu)", "S0(gpu) S1(node)",
                                 "F(gpu,node)", "O(gpu; 1)"};
const char* const kPending[] = {"+sum(gpu)", "S0(gpu) +sum(node)", "+avg(node,gpu)",
                                "+avg(gpu) +sum(node)"};

std::vector<std::string> AllLayouts() {
  std::vector<std::string> out(std::begin(kComplete), std::end(kComplete));
  out.insert(out.end(), std::begin(kPending), std::end(kPending));
  return out;
}

at::Tensor Values(const Sizes& shape, int64_t seed = 0) {
  return Whole(shape, seed, at::kDouble) + 0.5;  // no zeros
}

DTensor Leaf(const at::Tensor& whole, const LiveMesh& mesh, absl::string_view layout) {
  const DTensor x = Place(whole, mesh, layout);
  const DTensor own = Clone(Detach(x));
  own.ToLocal().set_requires_grad(true);
  return own;
}

// The sum of y times a weight of its own for each element: gradients then differ between elements.
at::Tensor Loss(const DTensor& y) {
  const Sizes shape(y.shape().begin(), y.shape().end());
  const DTensor weight = DTensor::Distribute(Values(shape, 7), y.mesh(), "R");
  return Sum(Mul(y, weight)).FullTensor();
}
at::Tensor Loss(const at::Tensor& y) { return (y * Values(y.sizes().vec(), 7)).sum(); }

// The gradient that the local tensor got, as that of the value: averages hand on a part of it.
at::Tensor GradOf(const DTensor& x) {
  const at::Tensor grad = x.ToLocal().grad();
  if (!grad.defined()) return {};
  const Layout layout = GradientLayout(x.layout());
  return DTensor::FromLocal(grad, x.mesh(), layout).FullTensor() * GradientScale(x.layout());
}

void ExpectGrad(const DTensor& x, const at::Tensor& want, const std::string& what) {
  const at::Tensor got = GradOf(x);
  ASSERT_TRUE(got.defined()) << what;
  EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12)) << what << "\n" << got << "\n" << want;
}

class Gradients : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, Gradients, kMeshes, MeshName);

TEST_P(Gradients, FlowBackThroughEveryRedistribution) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& shape : {Sizes{5, 3}, Sizes{1, 8}, Sizes{0, 3}}) {
      for (const std::string& src : AllLayouts()) {
        for (const std::string& dst : AllLayouts()) {
          const DTensor x = Leaf(Values(shape), mesh, src);
          std::optional<DTensor> y;
          if (!ErrorOf([&] { y = x.Redistribute(dst); }).empty()) continue;  // unlike partials
          Loss(*y).backward();
          ExpectGrad(x, Values(shape, 7), src + " -> " + dst);
        }
      }
    }
  });
}

// fn of DTensors and the same of plain tensors, with gradients to both arguments.
template <typename Fn, typename Plain>
void ExpectGrads(const LiveMesh& mesh, const Sizes& left, const Sizes& right, const Fn& fn,
                 const Plain& plain, const std::vector<std::string>& ps,
                 const std::vector<std::string>& qs) {
  const at::Tensor a = Values(left).requires_grad_(), b = Values(right, 1).requires_grad_();
  Loss(plain(a, b)).backward();
  for (const std::string& p : ps) {
    for (const std::string& q : qs) {
      const DTensor x = Leaf(a.detach(), mesh, p), y = Leaf(b.detach(), mesh, q);
      Loss(fn(x, y)).backward();
      ExpectGrad(x, a.grad(), p + ", " + q + " left");
      ExpectGrad(y, b.grad(), p + ", " + q + " right");
    }
  }
}

TEST_P(Gradients, OfArithmeticBroadcastOrNotAreThoseOfTheWholeTensors) {
  Run([](const LiveMesh& mesh) {
    const std::vector<std::string> vectors = {"R", "S0(gpu)", "F(node)", "+sum(node)"};
    const std::vector<std::string> matrices = AllLayouts();
    const std::pair<Sizes, Sizes> shapes[] = {{{5, 3}, {5, 3}}, {{5, 3}, {3}}, {{4, 3}, {1, 3}}};
    for (const auto& [left, right] : shapes) {
      const auto& qs = right.size() == 1 ? vectors : matrices;
      ExpectGrads(
          mesh, left, right,
          [](const DTensor& a, const DTensor& b) { return Sub(Mul(Add(a, b), b), a); },
          [](const at::Tensor& a, const at::Tensor& b) { return (a + b) * b - a; }, matrices, qs);
      ExpectGrads(
          mesh, left, right,
          [](const DTensor& a, const DTensor& b) {
            return Add(Div(a, b), Div(c10::Scalar(2.0), Abs(Neg(a))));
          },
          [](const at::Tensor& a, const at::Tensor& b) { return a / b + 2 / (-a).abs(); }, matrices,
          qs);
    }
  });
}

TEST_P(Gradients, OfReductionsTiesIncludedAreThoseOfTheWholeTensor) {
  struct Op {
    const char* name;
    std::function<DTensor(const DTensor&, const Dims&)> fn;
    std::function<at::Tensor(const at::Tensor&, const Dims&)> plain;
  };
  const Op ops[] = {
      {"sum", [](const DTensor& x, const Dims& d) { return Sum(x, d); },
       [](const at::Tensor& x, const Dims& d) { return x.sum(d); }},
      {"mean", [](const DTensor& x, const Dims& d) { return Mean(x, d); },
       [](const at::Tensor& x, const Dims& d) { return x.mean(d); }},
      {"max", [](const DTensor& x, const Dims& d) { return Max(x, d); },
       [](const at::Tensor& x, const Dims& d) { return x.amax(d); }},
      {"min", [](const DTensor& x, const Dims& d) { return Min(x, d); },
       [](const at::Tensor& x, const Dims& d) { return x.amin(d); }},
      {"norm1", [](const DTensor& x, const Dims& d) { return Norm(x, 1, d); },
       [](const at::Tensor& x, const Dims& d) { return at::linalg_vector_norm(x, 1, d); }},
      {"norm2", [](const DTensor& x, const Dims& d) { return Norm(x, 2, d); },
       [](const at::Tensor& x, const Dims& d) { return at::linalg_vector_norm(x, 2, d); }}};
  Run([&](const LiveMesh& mesh) {
    for (const at::Tensor& whole : {Values({5, 3}), at::zeros({2, 8}, at::kDouble)}) {
      for (const Op& op : ops) {
        for (const Dims& dims : {Dims{0}, Dims{1}, Dims{0, 1}}) {
          const at::Tensor a = whole.clone().requires_grad_();
          Loss(op.plain(a, dims)).backward();
          for (const std::string& layout : AllLayouts()) {
            const DTensor x = Leaf(whole, mesh, layout);
            Loss(op.fn(x, dims)).backward();
            ExpectGrad(x, a.grad(), absl::StrCat(op.name, " ", layout));
          }
        }
      }
    }
  });
}

TEST_P(Gradients, OfProductsOfMatricesAreThoseOfTheWholeMatrices) {
  Run([](const LiveMesh& mesh) {
    ExpectGrads(
        mesh, {5, 4}, {4, 3}, [](const DTensor& a, const DTensor& b) { return MatMul(a, b); },
        [](const at::Tensor& a, const at::Tensor& b) { return at::matmul(a, b); }, AllLayouts(),
        AllLayouts());
  });
}

TEST_P(Gradients, OfShapeOperationsAndCopiesAreThoseOfTheWholeTensor) {
  Run([](const LiveMesh& mesh) {
    const at::Tensor a = Values({4, 6}).requires_grad_();
    Loss(a.view({4, 2, 3}).select(2, 1).transpose(0, 1) * 2).backward();
    for (const char* layout : {"R", "S0(gpu)", "S0(gpu,node)", "O(gpu; 1)", "+sum(gpu)"}) {
      const DTensor x = Leaf(a.detach(), mesh, layout);
      const DTensor y = Index(Reshape(x, {4, 2, 3}), {IndexEllipsis(), int64_t{1}});
      Loss(Mul(Clone(Transpose(y, 0, 1)), c10::Scalar(2))).backward();
      ExpectGrad(x, a.grad(), layout);
    }
  });
}

TEST(GradientRules, OfAReductionNothingAndOfAGatherASlice) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const auto kinds = [&](const char* src, const char* dst) {
      return Collectives(mesh, [&] {
        const DTensor x = Leaf(at::ones({4}, at::kDouble), mesh, src);
        x.Redistribute(dst).ToLocal().sum().backward();
      });
    };
    EXPECT_EQ(kinds("+sum(gpu)", "R"), Strings{"all_reduce"});
    EXPECT_EQ(kinds("S0(gpu)", "R"), Strings{"all_gather"});
    EXPECT_EQ(kinds("R", "S0(gpu)"), Strings{"all_gather"});  // the slice's, on the way back
    EXPECT_EQ(kinds("S0(gpu)", "S0(gpu)"), Strings());
  });
}

TEST(GradientRules, LayoutsAxisByAxis) {
  const Mesh mesh = ValueOrThrow(Mesh::Create({2, 2}, {"node", "gpu"}));
  const auto grad = [&](absl::string_view text) {
    return GradientLayout(ValueOrThrow(Layout::Parse(text, {4, 4}, mesh))).ToString();
  };
  EXPECT_EQ(grad("S0(gpu) S1(node)"), "S0(gpu) S1(node)");
  EXPECT_EQ(grad("F(gpu,node)"), "F(gpu,node)");
  EXPECT_EQ(grad("O(gpu; 1)"), "O(gpu; 1)");
  EXPECT_EQ(grad("+sum(gpu)"), "R");
  EXPECT_EQ(grad("S0(gpu) +avg(node)"), "S0(gpu)");
  EXPECT_EQ(grad("S0(gpu) +max(node)"), "S0(gpu) +sum(node)");
  EXPECT_EQ(grad("+min(gpu)"), "+sum(gpu)");
  ExpectError([&] { grad("+product(gpu)"); }, "a pending product has no gradient: +product(gpu)");
  ExpectError([&] { grad("+band(gpu)"); }, "a pending band has no gradient");
}

TEST(GradientRules, PendingExtremaShareTheGradientAmongEquals) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const at::Tensor mine =
        at::tensor(mesh.rank() == 0 ? std::vector<double>{1, 5} : std::vector<double>{4, 5})
            .requires_grad_();
    const DTensor x = DTensor::FromLocal(mine, mesh, "+max(gpu)", Shape{2});
    (x.FullTensor() * 6).sum().backward();
    const at::Tensor want =
        at::tensor(mesh.rank() == 0 ? std::vector<double>{0, 3} : std::vector<double>{6, 3});
    EXPECT_TRUE(at::equal(mine.grad(), want)) << mine.grad();
  });
}

TEST(GradientRules, RanksThatGoOnWithDataOfTheirOwnAddTheirGradientsUp) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const DTensor x = Leaf(at::ones({3}, at::kDouble), mesh, "R");
    const Layout each = ValueOrThrow(Layout::Parse("+sum(gpu)", {3}, mesh));
    (x.ToLocal(each) * (mesh.rank() + 1)).sum().backward();
    EXPECT_TRUE(at::equal(x.ToLocal().grad(), at::full({3}, 3.0, at::kDouble)));
    const Layout split = ValueOrThrow(Layout::Parse("S0(gpu)", {3}, mesh));
    ExpectError([&] { x.ToLocal(split); }, "the local shapes differ");
  });
}

}  // namespace
}  // namespace lins::testing
