// The two file formats of profiles (docs/profile.md).
#include <charconv>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lins_policy/json_reader.h"
#include "lins_policy/profile.h"
#include "lins_policy/profile_meshes.h"
#include "lins_policy/save_file.h"
#include "mesh/error.h"

namespace lins {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMost = INT64_MAX;  // what is too much of a size is for Create to say

StepKind ReadOp(const JsonPlace& place, const std::string& name) {
  for (StepKind op : kProfileOperations) {
    if (name == StepKindName(op)) return op;
  }
  place.Fail(absl::StrCat("is the operation '", name,
                          "': legal are all_gather, reduce_scatter, all_reduce, broadcast and "
                          "all_to_all"));
  return StepKind::kAllGather;
}

ProfilePoint ReadPoint(const JsonPlace& place) {
  place.AllowOnly({"bytes", "median", "p95", "stddev", "samples", "algorithm"});
  ProfilePoint p;
  p.bytes = place.At("bytes").Int(1, kMost);
  p.median = place.At("median").Number();
  if (place.Has("p95")) p.p95 = place.At("p95").Number();
  if (place.Has("stddev")) p.stddev = place.At("stddev").Number();
  if (place.Has("samples")) p.samples = place.At("samples").Int(1, kMost);
  if (place.Has("algorithm")) p.algorithm = place.At("algorithm").String();
  return p;
}

ProfileCurve ReadCurve(const JsonPlace& place) {
  place.AllowOnly({"op", "gpus", "nodes", "points"});
  ProfileCurve c;
  c.op = ReadOp(place.At("op"), place.At("op").String());
  c.gpus = place.At("gpus").Int(1, kMost);
  c.nodes = place.At("nodes").Int(1, kMost);
  for (const JsonPlace& point : place.At("points").Items()) c.points.push_back(ReadPoint(point));
  return c;
}

ComputeProfile ReadCompute(const JsonPlace& place) {
  place.AllowOnly({"flops_per_second", "overlap_slowdown", "units"});
  ComputeProfile out;
  if (place.Has("flops_per_second")) out.flops_per_second = place.At("flops_per_second").Number();
  if (place.Has("overlap_slowdown")) out.overlap_slowdown = place.At("overlap_slowdown").Number();
  if (place.Has("units")) {
    for (const auto& [name, unit] : place.At("units").Members()) {
      unit.AllowOnly({"forward", "backward"});
      out.units[name] = {unit.At("forward").Number(), unit.At("backward").Number()};
    }
  }
  return out;
}

absl::StatusOr<Profile> ReadOwn(const Json& document, const std::string& what,
                                absl::string_view fallback_name) {
  absl::Status status;
  const JsonPlace root(&document, what, &status);
  root.AllowOnly({"format", "version", "name", "source", "gpus_per_node", "nodes", "environment",
                  "curves", "compute"});
  if (root.At("format").String() != "lins-profile") {
    root.At("format").Fail("must be \"lins-profile\"");
  }
  root.At("version").Int(1, 1);
  std::string name = root.Has("name") ? root.At("name").String() : std::string(fallback_name);
  std::string source = root.At("source").String();
  const int64_t gpus_per_node = root.At("gpus_per_node").Int(1, kMost);
  const int64_t nodes = root.At("nodes").Int(1, kMost);
  std::map<std::string, std::string> environment;
  if (root.Has("environment")) {
    for (const auto& [key, value] : root.At("environment").Members()) {
      environment[key] = value.String();
    }
  }
  std::vector<ProfileCurve> curves;
  for (const JsonPlace& curve : root.At("curves").Items()) curves.push_back(ReadCurve(curve));
  ComputeProfile compute;
  if (root.Has("compute")) compute = ReadCompute(root.At("compute"));
  LINS_RETURN_IF_ERROR(status);
  return Profile::Create(std::move(name), std::move(source), gpus_per_node, nodes,
                         std::move(curves), std::move(compute), std::move(environment));
}

// A key of the published table: a positive whole number as a string.
int64_t ReadKey(const std::string& key, const JsonPlace& place) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(key, &number) || number < 1) {
    place.Fail("must be a positive whole number");
    return 1;
  }
  return number;
}

// The published table: seconds by operation, ranks and message bytes. The first `ranks` ranks took
// part, so that whole nodes are full.
absl::StatusOr<Profile> ReadPublished(const Json& document, const std::string& what,
                                      absl::string_view name) {
  absl::Status status;
  const JsonPlace root(&document, what, &status);
  root.AllowOnly({"source", "gpus_per_node", "latency_s"});
  if (!root.Has("gpus_per_node")) {
    root.Fail("lacks gpus_per_node: add it, for example \"gpus_per_node\": 8");
  }
  const int64_t gpus_per_node = root.At("gpus_per_node").Int(1, kMost);
  std::string source = root.At("source").String();
  int64_t most_nodes = 1;
  std::vector<ProfileCurve> curves;
  for (const auto& [op_name, by_ranks] : root.At("latency_s").Members()) {
    const StepKind op = ReadOp(by_ranks, op_name == "all2all" ? "all_to_all" : op_name);
    for (const auto& [ranks_text, by_bytes] : by_ranks.Members()) {
      const int64_t ranks = ReadKey(ranks_text, by_bytes);
      if (!status.ok()) break;
      if (ranks > gpus_per_node && ranks % gpus_per_node != 0) {
        by_bytes.Fail(absl::StrCat("are no whole nodes of ", gpus_per_node, " GPUs"));
      }
      ProfileCurve c{
          op, std::min(ranks, gpus_per_node), std::max<int64_t>(1, ranks / gpus_per_node), {}};
      most_nodes = std::max(most_nodes, c.nodes);
      for (const auto& [bytes, seconds] : by_bytes.Members()) {
        ProfilePoint point;
        point.bytes = ReadKey(bytes, seconds);
        point.median = seconds.Number();
        c.points.push_back(std::move(point));
      }
      curves.push_back(std::move(c));
    }
  }
  LINS_RETURN_IF_ERROR(status);
  return Profile::Create(std::string(name), std::move(source), gpus_per_node, most_nodes,
                         std::move(curves));
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The shortest decimal that reads back as the same number.
std::string Digits(double x) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), x).ptr);
}

// What is unknown is left out.
std::string PointJson(const ProfilePoint& p) {
  std::string out = absl::StrCat("{\"bytes\":", p.bytes, ",\"median\":", Digits(p.median));
  if (p.p95 != 0) absl::StrAppend(&out, ",\"p95\":", Digits(p.p95));
  if (p.stddev != 0) absl::StrAppend(&out, ",\"stddev\":", Digits(p.stddev));
  if (p.samples != 1) absl::StrAppend(&out, ",\"samples\":", p.samples);
  if (!p.algorithm.empty()) absl::StrAppend(&out, ",\"algorithm\":", Quoted(p.algorithm));
  absl::StrAppend(&out, "}");
  return out;
}

std::string CurveJson(const ProfileCurve& c) {
  const auto point = [](std::string* out, const ProfilePoint& p) { out->append(PointJson(p)); };
  return absl::StrCat("  {\"op\":", Quoted(std::string(StepKindName(c.op))), ",\"gpus\":", c.gpus,
                      ",\"nodes\":", c.nodes, ",\"points\":[\n   ",
                      absl::StrJoin(c.points, ",\n   ", point), "]}");
}

std::string ComputeJson(const ComputeProfile& c) {
  const auto unit = [](std::string* out, const auto& u) {
    absl::StrAppend(out, Quoted(u.first), ":{\"forward\":", Digits(u.second.forward),
                    ",\"backward\":", Digits(u.second.backward), "}");
  };
  return absl::StrCat("{\"flops_per_second\":", Digits(c.flops_per_second),
                      ",\"overlap_slowdown\":", Digits(c.overlap_slowdown), ",\"units\":{",
                      absl::StrJoin(c.units, ",\n  ", unit), "}}");
}

}  // namespace

absl::StatusOr<Profile> Profile::FromJson(absl::string_view text, absl::string_view name) {
  const std::string what = absl::StrCat("profile '", name, "'");
  LINS_ASSIGN_OR_RETURN(const Json document, ParseJson(text, what));
  const bool published = document.is_object() && document.contains("latency_s");
  return published ? ReadPublished(document, what, name) : ReadOwn(document, what, name);
}

std::string Profile::ToJson() const {
  const auto pair = [](std::string* out, const auto& p) {
    absl::StrAppend(out, Quoted(p.first), ":", Quoted(p.second));
  };
  const auto curve = [](std::string* out, const ProfileCurve& c) { out->append(CurveJson(c)); };
  return absl::StrCat("{\"format\":\"lins-profile\",\"version\":1,\n \"name\":", Quoted(name_),
                      ",\n \"source\":", Quoted(source_), ",\n \"gpus_per_node\":", gpus_per_node_,
                      ",\"nodes\":", nodes_, ",\n \"environment\":{",
                      absl::StrJoin(environment_, ",\n  ", pair),
                      "},\n \"compute\":", ComputeJson(compute_), ",\n \"curves\":[\n",
                      absl::StrJoin(curves_, ",\n", curve), "]}\n");
}

absl::Status Profile::Save(const std::string& path) const { return SaveFile(path, ToJson()); }

}  // namespace lins
