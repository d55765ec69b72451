// Factories: values are a function of seed and place, never of the layout or the mesh.
#include "dtensor/factories.h"

#include "dtensor/random.h"
#include "tests/dtensor/sweep.h"

namespace lins::testing {
namespace {

class Factories : public OnMeshes {};
INSTANTIATE_TEST_SUITE_P(Meshes, Factories, kMeshes, MeshName);

TEST_P(Factories, RandomNumbersAreTheSameUnderEveryLayoutWithoutCommunication) {
  Run([](const LiveMesh& mesh) {
    for (const Sizes& sizes : {Sizes{5, 7}, Sizes{1, 1}, Sizes{0, 3}, Sizes{8, 2}}) {
      const Shape shape(sizes.begin(), sizes.end());
      for (const auto make : {Rand, RandN}) {
        for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
          const at::Tensor want = make(Layout::Replicated(shape, mesh), mesh, 3, dtype).ToLocal();
          EXPECT_EQ(want.scalar_type(), dtype);
          for (const std::string& text : LayoutsOf(2)) {
            const Layout layout = ValueOrThrow(Layout::Parse(text, shape, mesh));
            std::optional<DTensor> x;
            EXPECT_EQ(Collectives(mesh, [&] { x = make(layout, mesh, 3, dtype); }), Strings());
            EXPECT_EQ(x->layout(), layout);
            EXPECT_TRUE(Same(*x, want)) << Describe(layout);
          }
        }
      }
    }
  });
}

TEST_P(Factories, ConstantsFillEveryLayout) {
  Run([](const LiveMesh& mesh) {
    for (const std::string& text : LayoutsOf(2)) {
      const Layout layout = ValueOrThrow(Layout::Parse(text, {5, 3}, mesh));
      EXPECT_TRUE(Same(Zeros(layout, mesh), at::zeros({5, 3}))) << text;
      EXPECT_TRUE(Same(Ones(layout, mesh, at::kLong), at::ones({5, 3}, at::kLong))) << text;
      EXPECT_TRUE(Same(Full(layout, mesh, 2.5), at::full({5, 3}, 2.5f))) << text;
      const DTensor e = Empty(layout, mesh, at::kInt);
      EXPECT_TRUE(e.layout() == layout && e.dtype() == at::kInt) << text;
    }
  });
}

TEST(FactoryRules, RandomNumbersAreTheSameOnAnotherMesh) {
  std::vector<at::Tensor> found;
  for (const Sizes& mesh_shape : {Sizes{2, 2}, Sizes{1, 3}, Sizes{5, 1}}) {
    OnMesh(mesh_shape, [&](const LiveMesh& mesh) {
      const Layout layout = ValueOrThrow(Layout::Parse("S0(gpu,node)", {6, 5}, mesh));
      const at::Tensor all = RandN(layout, mesh, 9).FullTensor();
      if (mesh.rank() == 0) found.push_back(all);
    });
  }
  EXPECT_TRUE(at::equal(found[0], found[1]) && at::equal(found[0], found[2]));
}

TEST(FactoryRules, PhiloxGivesTheAnswersOfItsAuthors) {
  EXPECT_EQ(Philox(0, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ(Philox(ones, ones, ones),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(FactoryRules, UniformNumbersAreTheUpperBitsOfTheWords) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const Layout layout = ValueOrThrow(Layout::Parse("S0(gpu)", {11}, mesh));
    const at::Tensor got = Rand(layout, mesh, 77).FullTensor();
    for (int64_t i = 0; i < 11; ++i) {
      const uint32_t word = Philox(77, i / 4, 0)[i % 4];
      EXPECT_EQ(got[i].item<float>(), static_cast<float>(word >> 8) / (1 << 24)) << i;
    }
  });
}

TEST(FactoryRules, TypesFollowTheValueAndMistakesAreNamed) {
  OnMesh({1, 2}, [](const LiveMesh& mesh) {
    const Layout layout = ValueOrThrow(Layout::Parse("S0(gpu)", {3}, mesh));
    EXPECT_EQ(Full(layout, mesh, 2).dtype(), at::kLong);
    EXPECT_EQ(Full(layout, mesh, true).dtype(), at::kBool);
    EXPECT_EQ(Full(layout, mesh, c10::complex<double>(0, 1)).dtype(), at::kComplexFloat);
    EXPECT_EQ(Full(layout, mesh, 2, at::kDouble).dtype(), at::kDouble);
    ExpectError([&] { Rand(layout, mesh, 0, at::kLong); }, "float32");
    const Layout product = ValueOrThrow(Layout::Parse("+product(gpu)", {3}, mesh));
    ExpectError([&] { Zeros(product, mesh); }, "+product(gpu)");
    const Mesh other = ValueOrThrow(Mesh::Create({2}, {"x"}));
    ExpectError([&] { Zeros(Layout::Replicated({3}, other), mesh); },
                "R of (3,) on Mesh(x=2) is not one on Mesh(node=1, gpu=2)");
  });
}

}  // namespace
}  // namespace lins::testing
