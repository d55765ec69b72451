// Policies as text: presets, "P=.. G=.. OS=..", and what is refused.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "lins_policy/factors.h"

namespace lins {
namespace {

const Mesh& FourByEight() {
  static const Mesh* mesh = new Mesh(*Mesh::Create({4, 8}, {"node", "gpu"}));
  return *mesh;
}

struct Text {
  const char *text, *want;
};

TEST(PolicyTextTest, PresetsAndFactors) {
  for (const Text& t : std::vector<Text>{{"ddp", "P=1x1 G=1x1 OS=1x1"},
                                         {"zero1", "P=1x1 G=1x1 OS=8x4"},
                                         {"zero2", "P=1x1 G=8x4 OS=8x4"},
                                         {"zero3", "P=8x4 G=8x4 OS=8x4"},
                                         {"fsdp2", "P=8x4 G=8x4 OS=8x4"},
                                         {"hsdp", "P=8x1 G=8x1 OS=8x1"},
                                         {"mics:4", "P=4x1 G=4x1 OS=4x1"},
                                         {"mics:16", "P=8x2 G=8x2 OS=8x2"},
                                         {"P=1 G=1 OS=8", "P=1x1 G=1x1 OS=8x1"},
                                         {"P=4x1 G=4x1 OS=8x1", "P=4x1 G=4x1 OS=8x1"},
                                         {"OS=32 P=2 G=16", "P=2x1 G=8x2 OS=8x4"},
                                         {"  P=1   G=1  OS=1 ", "P=1x1 G=1x1 OS=1x1"},
                                         {"P=1x1x1 G=1 OS=1", "P=1x1 G=1x1 OS=1x1"}}) {
    const auto policy = ParsePolicy(t.text, FourByEight());
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(policy->ToString(), t.want) << t.text;
  }
}

TEST(PolicyTextTest, AFlatMeshHasOneFactor) {
  const Mesh mesh = *Mesh::Create({8}, {"dp"});
  EXPECT_EQ(ParsePolicy("zero3", mesh)->ToString(), "P=8 G=8 OS=8");
  EXPECT_EQ(ParsePolicy("P=2 G=2x1 OS=8", mesh)->ToString(), "P=2 G=2 OS=8");
}

TEST(PolicyTextTest, RefusalsSayWhatIsWrongAndWhatIsLegal) {
  for (const Text& t : std::vector<Text>{
           {"", "unknown policy '': legal are a preset (ddp, zero1, zero2, zero3"},
           {"zero4", "unknown policy 'zero4': legal are a preset"},
           {"ZeRO3", "unknown policy 'ZeRO3'"},
           {"ddp ", "unknown policy 'ddp '"},
           {"zero3:8", "unknown policy 'zero3:8'"},
           {"mics", "'mics': mics needs the number of ranks in a group, for example mics:8"},
           {"mics:", "mics needs the number of ranks"},
           {"mics:x", "'mics:x': mics needs the number of ranks"},
           {"mics:0", "factor 0 does not divide along Mesh(node=4, gpu=8)"},
           {"mics:3", "factor 3 does not divide along"},
           {"mics:64", "factor 64 is larger than the 32 ranks"},
           {"P=1 G=1", "policy 'P=1 G=1' must give all of P, G and OS"},
           {"OS=8", "must give all of P, G and OS"},
           {"P=1 P=1 G=1 OS=1", "P is given twice in policy 'P=1 P=1 G=1 OS=1'"},
           {"P=1 G=1 OS=1 OS=8", "OS is given twice"},
           {"P=1 G=1 S=8", "'S=8' in policy 'P=1 G=1 S=8': states are P, G and OS"},
           {"p=1 G=1 OS=1", "'p=1' in policy"},
           {"P=1 G=1 OS=8 zero3", "'zero3' in policy"},
           {"P= G=1 OS=1", "'' is no factor for P: write a number of at least 1, or GPUs x nodes"},
           {"P=1 G=0 OS=8", "'0' is no factor for G"},
           {"P=1 G=-1 OS=8", "'-1' is no factor for G"},
           {"P=1 G=1 OS=8x", "'8x' is no factor for OS"},
           {"P=1 G=1 OS=x8", "'x8' is no factor for OS"},
           {"P=1 G=1 OS=8.0", "'8.0' is no factor for OS"},
           {"P=1,G=1,OS=8", "'1,G=1,OS=8' is no factor for P"},
           {"P=1 G=1 OS=99999999999999999999", "is no factor for OS"},
           {"P=1 G=1 OS=8x2x2",
            "factor 8x2x2 of OS has more parts than Mesh(node=4, gpu=8) has axes"},
           {"P=3 G=8 OS=8", "factor 3 does not divide along"},
           {"P=3x1 G=8 OS=8", "factor 3x1 of P does not divide Mesh(node=4, gpu=8)"},
           {"P=1 G=1 OS=8x3", "factor 8x3 of OS does not divide"},
           {"P=1 G=1 OS=4x2",
            "factor 4x2 of OS cuts over axis 'node' without using all 8 of 'gpu': fill the faster"},
           {"P=8 G=4 OS=8", "P=8x1 is cut finer than G=4x1"},
           {"P=1 G=16 OS=8", "G=8x2 is cut finer than OS=8x1"}}) {
    const auto policy = ParsePolicy(t.text, FourByEight());
    ASSERT_FALSE(policy.ok()) << t.text;
    EXPECT_TRUE(absl::IsInvalidArgument(policy.status()));
    EXPECT_TRUE(absl::StrContains(policy.status().message(), t.want)) << policy.status();
  }
}

}  // namespace
}  // namespace lins
