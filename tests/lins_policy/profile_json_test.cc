// Files of profiles: round trips, and every way in which one can be wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <regex>

#include "absl/strings/str_replace.h"
#include "lins_policy/profile.h"
#include "lins_policy/profile_meshes.h"
#include "lins_policy/shipped_profiles.h"
#include "mesh/error.h"

namespace lins {
namespace {

std::string A800Json() { return std::string(ShippedProfiles()[0].json); }

// The smallest profile there is: every operation at one size.
std::string Small() {
  std::string curves;
  for (StepKind op : kProfileOperations) {
    absl::StrAppend(&curves, curves.empty() ? "" : ",", R"({"op":")", StepKindName(op),
                    R"(","gpus":2,"nodes":1,"points":[{"bytes":4096,"median":0.001}]})");
  }
  return absl::StrCat(R"({"format":"lins-profile","version":1,"name":"small","source":"measured",)",
                      R"("gpus_per_node":2,"nodes":1,"curves":[)", curves, "]}");
}

std::string Message(absl::string_view text) {
  const absl::StatusOr<Profile> p = Profile::FromJson(text, "p.json");
  return p.ok() ? "" : std::string(p.status().message());
}

// The error when `from` in the smallest profile is replaced, at its first place only.
std::string Replaced(const std::string& from, const std::string& to) {
  std::string text = Small();
  const size_t at = text.find(from);
  LINS_CHECK(at != std::string::npos, from);
  return Message(text.replace(at, from.size(), to));
}

TEST(ProfileJson, RoundTrips) {
  const Profile p = *Profile::Load("a800");
  EXPECT_EQ(p.ToJson(), A800Json());
  EXPECT_EQ(Profile::FromJson(p.ToJson(), "x")->ToJson(), p.ToJson());
  EXPECT_EQ(p.name(), "a800");
  EXPECT_EQ(p.gpus_per_node(), 8);
  EXPECT_EQ(p.nodes(), 16);
  EXPECT_EQ(p.curves().size(), 35);
}

TEST(ProfileJson, EveryFieldComesBack) {
  std::vector<ProfileCurve> curves;
  for (StepKind op : kProfileOperations) {
    curves.push_back(
        {op, 1, 2, {{7, 0.1 + 0.2, 0.5, 1e-300, 3, "ri\"ng"}, {5, 1e-9, 0, 0, 1, ""}}});
  }
  ComputeProfile compute{1.5e14, 1.25, {{"a.0", {0.25, 0.5}}, {"b", {1, 2}}}};
  const Profile p = *Profile::Create("na\"me", "measured", 3, 4, curves, compute, {{"k", "v\n"}});
  const Profile q = *Profile::FromJson(p.ToJson(), "x");
  EXPECT_EQ(q.ToJson(), p.ToJson());
  EXPECT_EQ(q.name(), "na\"me");
  EXPECT_EQ(q.curves()[0].points[1].median, 0.1 + 0.2);
  EXPECT_EQ(q.curves()[0].points[1].stddev, 1e-300);
  EXPECT_EQ(q.curves()[0].points[1].algorithm, "ri\"ng");
  EXPECT_EQ(q.curves()[0].points[0].bytes, 5);
  EXPECT_EQ(q.compute().units.at("b").backward, 2);
  EXPECT_EQ(q.compute().overlap_slowdown, 1.25);
  EXPECT_EQ(q.environment().at("k"), "v\n");
}

TEST(ProfileJson, SavesWholeFilesAndLoadsThem) {
  const Profile p = *Profile::Load("a800");
  const std::string path = testing::TempDir() + "/saved.json";
  ASSERT_TRUE(p.Save(path).ok());
  EXPECT_EQ(Profile::Load(path)->ToJson(), p.ToJson());
  std::remove(path.c_str());
  const absl::Status failed = p.Save(testing::TempDir() + "/none/saved.json");
  EXPECT_NE(failed.message().find("none/saved.json': No such file"), std::string::npos);
}

TEST(ProfileJson, UnknownNamesSayWhatIsShipped) {
  for (const std::string name : {"h100", "", "/"}) {
    EXPECT_EQ(
        Profile::Load(name).status().message(),
        "no profile '" + name + "': neither a file that can be read nor a shipped name (a800)");
  }
  EXPECT_EQ(Profile::ShippedNames(), std::vector<std::string>{"a800"});
}

TEST(ProfileJson, ReadsThePublishedTable) {
  std::string ops;
  for (const char* op : {"all_gather", "reduce_scatter", "all_reduce", "broadcast", "all2all"}) {
    absl::StrAppend(&ops, ops.empty() ? "" : ",", "\"", op,
                    R"(":{"2":{"1024":1e-5},"8":{"1024":2e-5,"4096":3e-5},"16":{"1024":4e-5}})");
  }
  const auto table = [&](const std::string& before) {
    return absl::StrCat("{", before, "\"source\":\"s\",\"latency_s\":{", ops, "}}");
  };
  const Profile p = *Profile::FromJson(table("\"gpus_per_node\":8,"), "table");
  EXPECT_EQ(p.name(), "table");
  EXPECT_EQ(p.nodes(), 2);
  EXPECT_EQ(p.Time(StepKind::kAllToAll, 1024, 8, 2)->seconds, 4e-5);
  EXPECT_EQ(p.Time(StepKind::kAllGather, 4096, 8, 1)->seconds, 3e-5);
  EXPECT_EQ(Message(table("")),
            "profile 'p.json': the document lacks gpus_per_node: add it, for example "
            "\"gpus_per_node\": 8");
  EXPECT_EQ(Message(table("\"gpus_per_node\":6,")),
            "profile 'p.json': latency_s.all2all.16 are no whole nodes of 6 GPUs");
  EXPECT_EQ(Message(absl::StrReplaceAll(table("\"gpus_per_node\":8,"), {{"\"2\":", "\"x\":"}})),
            "profile 'p.json': latency_s.all2all.x must be a positive whole number");
  EXPECT_EQ(
      Message(absl::StrReplaceAll(table("\"gpus_per_node\":8,"), {{"4e-5", "-4e-5"}})),
      "profile 'p.json': all_to_all on 8x2 at 1024 bytes: median is -4e-05 seconds: legal are "
      "1e-09 to 86400");
}

TEST(ProfileJson, MistakesAreNamedWithTheirPlace) {
  ASSERT_EQ(Message(Small()), "");
  EXPECT_EQ(Replaced("\"version\":1", "\"version\":2"),
            "profile 'p.json': version is 2: legal are whole numbers from 1 to 1");
  EXPECT_EQ(Replaced("lins-profile", "other"), "profile 'p.json': format must be \"lins-profile\"");
  EXPECT_EQ(Replaced("\"nodes\":1,\"curves\"", "\"curves\""), "profile 'p.json': nodes is missing");
  EXPECT_EQ(Replaced("\"median\":0.001", "\"median\":\"fast\""),
            "profile 'p.json': curves[0].points[0].median is \"fast\", must be a number");
  EXPECT_EQ(Replaced("\"median\":0.001", "\"median\":null"),
            "profile 'p.json': curves[0].points[0].median is null, must be a number");
  EXPECT_EQ(Replaced("\"median\":0.001", "\"mean\":0.001"),
            "profile 'p.json': curves[0].points[0].mean is unknown: legal are bytes, median, p95, "
            "stddev, samples, algorithm");
  EXPECT_EQ(Replaced("\"bytes\":4096", "\"bytes\":4096.5"),
            "profile 'p.json': curves[0].points[0].bytes is 4096.5: legal are whole numbers from 1 "
            "to 9223372036854775807");
  EXPECT_EQ(Replaced("\"op\":\"all_gather\"", "\"op\":\"gather\""),
            "profile 'p.json': curves[0].op is the operation 'gather': legal are all_gather, "
            "reduce_scatter, all_reduce, broadcast and all_to_all");
  EXPECT_EQ(Replaced("\"curves\":[", "\"curves\":[7,"),
            "profile 'p.json': curves[0] is 7, must be an object");
  EXPECT_EQ(
      Replaced("\"gpus\":2", "\"gpus\":4"),
      "profile 'small': all_gather on 4x1 is beyond the cluster of 2 GPUs per node x 1 nodes");
  EXPECT_EQ(Replaced("\"gpus\":2", "\"gpus\":1"),
            "profile 'small': all_gather on 1x1: a group of one has no collectives");
  EXPECT_EQ(Replaced("{\"bytes\":4096", "{\"bytes\":4096,\"median\":0.002},{\"bytes\":4096"),
            "profile 'small': all_gather on 2x1 has 4096 bytes twice");
  EXPECT_EQ(Replaced("[{\"bytes\":4096,\"median\":0.001}]", "[]"),
            "profile 'small': all_gather on 2x1 has no points");
  EXPECT_EQ(Replaced("\"op\":\"broadcast\"", "\"op\":\"all_reduce\""),
            "profile 'small': all_reduce on 2x1 is there twice");
  EXPECT_EQ(Replaced("\"source\":", "\"source\":\"x\",\"source\":"),
            "profile 'p.json': the key \"source\" is there twice in one object");
}

TEST(ProfileJson, TimesThatMakeNoSenseAreRefused) {
  for (const char* time : {"0", "-0.001", "1e-10", "1e6", "1e999", "NaN", "Infinity", "true"}) {
    EXPECT_NE(Replaced("\"median\":0.001", absl::StrCat("\"median\":", time)), "") << time;
  }
  EXPECT_NE(Replaced("\"median\":0.001", "\"median\":0.001,\"p95\":0.0001"), "");
  EXPECT_NE(Replaced("\"median\":0.001", "\"median\":0.001,\"stddev\":-1"), "");
  EXPECT_NE(Replaced("\"median\":0.001", "\"median\":0.001,\"samples\":0"), "");
  EXPECT_NE(Replaced("\"bytes\":4096", "\"bytes\":2000000000000000000"), "");
  EXPECT_NE(Replaced("\"gpus_per_node\":2", "\"gpus_per_node\":2000000"), "");
  EXPECT_NE(Replaced("\"gpus_per_node\":2", "\"gpus_per_node\":0"), "");
  EXPECT_NE(Replaced("\"nodes\":1,\"curves\"", "\"nodes\":0,\"curves\""), "");
  EXPECT_NE(Replaced("\"curves\"", "\"compute\":{\"overlap_slowdown\":0.5},\"curves\""), "");
  EXPECT_NE(Replaced("\"curves\"", "\"compute\":{\"flops_per_second\":-1},\"curves\""), "");
}

TEST(ProfileJson, MissingOperationsAreNamed) {
  std::vector<ProfileCurve> curves = {{StepKind::kAllReduce, 2, 1, {{1, 1, 0, 0, 1, ""}}}};
  EXPECT_EQ(Profile::Create("p", "s", 2, 1, curves).status().message(),
            "profile 'p': no times of all_gather, reduce_scatter, broadcast, all_to_all");
  curves[0].op = StepKind::kSlice;
  EXPECT_NE(Profile::Create("p", "s", 2, 1, curves).status().message().find("a curve of slice"),
            absl::string_view::npos);
}

TEST(ProfileJson, NanInsideCreateIsRefused) {
  std::vector<ProfileCurve> curves = Profile::FromJson(Small(), "p")->curves();
  curves[0].points[0].median = NAN;
  EXPECT_FALSE(Profile::Create("p", "s", 2, 1, curves).ok());
}

TEST(ProfileJson, NotJsonSaysWhere) {
  EXPECT_EQ(Message("{\"a\": }").substr(0, 58),
            "profile 'p.json': no valid JSON: parse error at line 1, co");
  EXPECT_NE(Message(""), "");
  EXPECT_NE(Message("\xff\xfe"), "");
  EXPECT_NE(Message("[]"), "");
  EXPECT_NE(Message("null"), "");
  EXPECT_NE(Message(std::string(100000, '[')), "");
  EXPECT_EQ(Message(std::string(1000, '[') + std::string(1000, ']')),
            "profile 'p.json': nested deeper than 64");
}

TEST(ProfileJson, TruncatedAtAnyByteIsAnError) {
  const std::string text = A800Json();
  const size_t whole = text.rfind('}') + 1;
  for (size_t size = 0; size < whole; ++size) {
    const absl::StatusOr<Profile> p =
        Profile::FromJson(absl::string_view(text).substr(0, size), "p");
    ASSERT_FALSE(p.ok()) << size;
    ASSERT_NE(p.status().message().find("no valid JSON"), absl::string_view::npos) << size;
  }
}

TEST(ProfileJson, MutatedBytesGiveAnErrorOrAProfile) {
  std::mt19937 random(3);
  const std::string sources[] = {Small(), A800Json().substr(0)};
  int valid = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = sources[round % 8 == 0];
    for (int k = 1 + random() % 3; k > 0; --k) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text[at] = "0123456789-+.eE\"{}[],:"[random() % 22];
          break;
        case 2:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 9));
          break;
      }
    }
    const absl::StatusOr<Profile> p = Profile::FromJson(text, "p");
    if (!p.ok()) {
      ASSERT_FALSE(p.status().message().empty());
      continue;
    }
    ++valid;
    ASSERT_EQ(Profile::FromJson(p->ToJson(), "p")->ToJson(), p->ToJson());
    for (const ProfileCurve& c : p->curves()) {
      const double seconds = p->Time(c.op, 5000, c.gpus, c.nodes)->seconds;
      ASSERT_TRUE(std::isfinite(seconds) && seconds >= 0);
    }
  }
  EXPECT_GT(valid, 100);
}

}  // namespace
}  // namespace lins
