// Plan files: what is saved comes back; anything else is an error.
#include "lins_policy/plan_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "lins_policy/json_diff.h"
#include "lins_policy/solve.h"
#include "nlohmann/json.hpp"
#include "problems.h"

namespace lins {
namespace {

bool operator==(const PlanCost& a, const PlanCost& b) {
  return a.seconds.t_p == b.seconds.t_p && a.seconds.t_g == b.seconds.t_g &&
         a.seconds.t_os0 == b.seconds.t_os0 && a.seconds.t_os1 == b.seconds.t_os1 &&
         a.bytes.total() == b.bytes.total() && a.bytes.t_p == b.bytes.t_p &&
         a.extra_micro_batch == b.extra_micro_batch && a.compute == b.compute &&
         a.exposed == b.exposed && a.update.optimizer == b.update.optimizer &&
         a.update.offload == b.update.offload;
}

void ExpectEqual(const Plan& a, const Plan& b) {
  EXPECT_TRUE(a.cost == b.cost);
  EXPECT_EQ(a.memory.List(), b.memory.List());
  EXPECT_EQ(a.policies, b.policies);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.cap_bytes, b.cap_bytes);
  EXPECT_TRUE(a.settings == b.settings);
  EXPECT_EQ(a.spec.units, b.spec.units);
  EXPECT_EQ(a.share.units, b.share.units);
  ASSERT_EQ(a.alternatives.size(), b.alternatives.size());
  for (size_t i = 0; i < a.alternatives.size(); ++i) {
    const Alternative &x = a.alternatives[i], &y = b.alternatives[i];
    EXPECT_TRUE(x.cost == y.cost);
    EXPECT_EQ(std::tie(x.name, x.policy, x.memory_bytes, x.fits, x.why_not),
              std::tie(y.name, y.policy, y.memory_bytes, y.fits, y.why_not));
  }
}

Plan SmallPlan() {
  Random random(7);
  Problem p = RandomProblem(random, 2);
  p.cluster = ModelCluster(1, 2);
  p.settings.family = Family::kPlanned;
  return *Solve(p.spec, p.cluster, p.settings);
}

TEST(PlanFileTest, WhatIsSavedComesBack) {
  Random random(1);
  int plans = 0;
  for (int i = 0; i < 60; ++i) {
    Problem p = RandomProblem(random, random.Int(1, 3));
    if (i % 3 == 0) p.settings.uniform = false;
    if (i % 7 == 0) p.cluster.quota_bytes = 1LL << 34;
    if (i % 5 == 0 && p.settings.uniform) p.settings.scales = {{p.cluster.nodes, 3, 0.1}};
    const auto plan = Solve(p.spec, p.cluster, p.settings);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::string text = *PlanToJson(*plan);
    const auto read = PlanFromJson(text, "it", &p.spec, &p.cluster);
    ASSERT_TRUE(read.ok()) << read.status();
    ExpectEqual(*plan, *read);
    EXPECT_EQ(*PlanToJson(*read), text);  // and is the same file again
    ++plans;
  }
  EXPECT_EQ(plans, 60);
}

TEST(PlanFileTest, AChangedProblemIsRefusedAndNamed) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  const Cluster cluster = A800(2);
  const std::string text = *PlanToJson(*Solve(spec, cluster, {}));
  EXPECT_TRUE(PlanFromJson(text, "it", &spec, &cluster).ok());
  const auto refused = [&](const ModelSpec& s, const Cluster& c, absl::string_view names) {
    const absl::Status status = PlanFromJson(text, "plan.json", &s, &c).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "plan.json was made for something else"));
    EXPECT_TRUE(absl::StrContains(status.message(), names)) << status;
  };
  ModelSpec longer = spec;
  longer.training.seq_len = 8192;
  refused(longer, cluster, "model.seq_len is 8192 and was 4096");
  ModelSpec wider = spec;
  wider.units[1].parameters += 1;
  refused(wider, cluster, "model.units[1].parameters is ");
  ModelSpec bytes = spec;
  bytes.training.sizes.moments = 2;
  refused(bytes, cluster, "model.state_bytes.moments is 2 and was 8");
  Cluster larger = cluster;
  larger.nodes = 4;
  refused(spec, larger, "cluster.nodes is 4 and was 2");
  Cluster quota = cluster;
  quota.quota_bytes = 1LL << 33;
  refused(spec, quota, "cluster.quota_bytes is 8589934592 and was -");
  Cluster other = cluster;  // a profile of another library version
  const Profile& p = *cluster.profile;
  other.profile =
      std::make_shared<Profile>(*Profile::Create(p.name(), p.source(), p.gpus_per_node(), p.nodes(),
                                                 p.curves(), p.compute(), {{"nccl", "9.9"}}));
  refused(spec, other, "cluster.profile.environment");
}

TEST(PlanFileTest, TheFingerprintCoversEveryInput) {
  const ModelSpec spec = *ModelSpec::Llama("7B", {});
  const Cluster cluster = A800(2);
  const auto base = Fingerprint(spec, cluster, {});
  ModelSpec longer = spec;
  longer.training.seq_len = 8192;
  Cluster larger = cluster;
  larger.nodes = 4;
  PlanSettings more;
  more.micro_batches = 2;
  const auto changed = [&](const std::map<std::string, std::string>& other) {
    std::string names;
    for (const auto& [name, text] : base) {
      if (other.at(name) != text) absl::StrAppend(&names, name, " ");
    }
    return names;
  };
  EXPECT_EQ(changed(Fingerprint(longer, cluster, {})), "model ");
  EXPECT_EQ(changed(Fingerprint(spec, larger, {})), "topology ");
  EXPECT_EQ(changed(Fingerprint(spec, cluster, more)), "settings ");
}

TEST(PlanFileTest, CutAtAnyByteItIsAnError) {
  const Plan plan = SmallPlan();
  const std::string text = *PlanToJson(plan);
  ASSERT_EQ(text.back(), '\n');
  for (size_t n = 0; n + 1 < text.size(); ++n) {
    ASSERT_FALSE(PlanFromJson(absl::string_view(text).substr(0, n), "it").ok()) << n;
  }
  // Without its last line break it is still whole.
  ExpectEqual(plan, *PlanFromJson(absl::string_view(text).substr(0, text.size() - 1), "it"));
}

TEST(PlanFileTest, DamagedBytesAreAnErrorOrTheSamePlan) {
  const Plan plan = SmallPlan();
  const std::string text = *PlanToJson(plan);
  Random random(3);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    for (int64_t n = random.Int(1, 3); n > 0; --n) {
      const size_t at = random.Int(0, static_cast<int64_t>(damaged.size()) - 1);
      switch (random.Int(0, 2)) {
        case 0:
          damaged[at] = static_cast<char>(random.Int(0, 255));
          break;
        case 1:
          damaged.erase(at, random.Int(1, 9));
          break;
        default:
          damaged.insert(at, 1, static_cast<char>(random.Int(32, 126)));
      }
    }
    const auto read = PlanFromJson(damaged, "it");
    if (read.ok()) {
      ExpectEqual(plan, *read);  // white space, or a byte put back
    } else {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1800);
}

// As PlanToJson signs it: damage that a digest cannot find must still not crash.
std::string Signed(nlohmann::json content) {
  content.erase("digest");
  uint64_t h = 14695981039346656037u;
  for (const char c : DumpJson(content)) {
    h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  content["digest"] = absl::StrFormat("%016x", h);
  return DumpJson(content);
}

TEST(PlanFileTest, SignedNonsenseIsAnErrorNotACrash) {
  const nlohmann::json good = nlohmann::json::parse(*PlanToJson(SmallPlan()));
  EXPECT_TRUE(PlanFromJson(Signed(good), "it").ok());
  std::vector<nlohmann::json::json_pointer> places;
  const nlohmann::json flat = good.flatten();
  for (const auto& [path, value] : flat.items()) places.emplace_back(path);
  const std::vector<nlohmann::json> nonsense = {nullptr,
                                                true,
                                                -1,
                                                0,
                                                1,
                                                3,
                                                1e300,
                                                -1e300,
                                                0.5,
                                                std::numeric_limits<int64_t>::max(),
                                                std::numeric_limits<int64_t>::min(),
                                                std::numeric_limits<uint64_t>::max(),
                                                "",
                                                "x",
                                                std::string(1000, 'x'),
                                                "P=1 G=1 OS=1",
                                                nlohmann::json::array(),
                                                nlohmann::json::object()};
  Random random(4);
  int refused = 0, tried = 0;
  for (const auto& place : places) {
    // Points of the profile have tests of their own.
    if (random.Int(0, 9) > 0 && absl::StrContains(place.to_string(), "/curves/")) continue;
    for (const nlohmann::json& value : nonsense) {
      nlohmann::json bad = good;
      bad[place] = value;
      const auto read = PlanFromJson(Signed(bad), "it");
      ++tried;
      refused += !read.ok();
      EXPECT_EQ(read.ok(), read.status().message().empty());
    }
    nlohmann::json missing = good;
    nlohmann::json& parent = missing[place.parent_pointer()];
    if (parent.is_object()) parent.erase(place.back());
    (void)PlanFromJson(Signed(missing), "it");
  }
  EXPECT_GT(refused, tried / 2);
}

TEST(PlanFileTest, OtherFormatsAndVersionsAreRefused) {
  nlohmann::json j = nlohmann::json::parse(*PlanToJson(SmallPlan()));
  nlohmann::json version = j;
  version["version"] = 2;
  EXPECT_EQ(PlanFromJson(Signed(version), "it").status().message(),
            "it is 'lins-plan' of version 2: legal is 'lins-plan' of version 1");
  nlohmann::json format = j;
  format["format"] = "other";
  EXPECT_FALSE(PlanFromJson(Signed(format), "it").ok());
  EXPECT_FALSE(PlanFromJson("", "it").ok());
  EXPECT_FALSE(PlanFromJson("[]", "it").ok());
  EXPECT_FALSE(PlanFromJson("{}", "it").ok());
  // A file whose costs this version would not give.
  nlohmann::json cheaper = j;
  cheaper["cost"]["exposed"] = 1e-30;
  const auto read = PlanFromJson(Signed(cheaper), "it");
  ASSERT_FALSE(read.ok());
  EXPECT_TRUE(absl::StrContains(read.status().message(), "solve again")) << read.status();
}

class PlanFileOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / absl::StrCat("lins-plan-", getpid());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string At(const char* name) const { return (dir_ / name).string(); }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  std::filesystem::path dir_;
};

TEST_F(PlanFileOnDisk, SavingIsAllOrNothing) {
  const Plan plan = SmallPlan();
  const std::string path = At("plan.json");
  ASSERT_TRUE(SavePlan(plan, path).ok());
  ExpectEqual(plan, *LoadPlan(path));
  ASSERT_TRUE(SavePlan(plan, path).ok());  // over the old one
  EXPECT_EQ(Read(path), *PlanToJson(plan));
  int files = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(dir_)) ++files;
  EXPECT_EQ(files, 1);  // nothing temporary stays
}

TEST_F(PlanFileOnDisk, PathsThatCannotBeAreErrorsThatNameThem) {
  const Plan plan = SmallPlan();
  for (const std::string& path : {At("no/such/folder/plan.json"), dir_.string(), std::string()}) {
    const absl::Status status = SavePlan(plan, path);
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("cannot write '", path, "'")))
        << status;
  }
  for (const std::string& path : {At("missing.json"), dir_.string(), std::string()}) {
    EXPECT_FALSE(LoadPlan(path).ok()) << path;
  }
  int files = 0;
  for ([[maybe_unused]] const auto& f : std::filesystem::directory_iterator(dir_)) ++files;
  EXPECT_EQ(files, 0);
}

}  // namespace
}  // namespace lins
