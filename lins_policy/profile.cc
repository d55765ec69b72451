#include "lins_policy/profile.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "lins_policy/profile_meshes.h"
#include "lins_policy/shipped_profiles.h"
#include "mesh/error.h"

namespace lins {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr double kLeastSeconds = 1e-9, kMostSeconds = 86400;
constexpr size_t kMostPoints = 256;  // of a curve
constexpr int64_t kMostGpus = 1024, kMostNodes = int64_t{1} << 20;

bool Outside(double x, double low, double high) { return !(x >= low && x <= high); }

absl::Status CheckPoint(const ProfilePoint& p, const std::string& where) {
  if (p.bytes < 1 || p.bytes > kMostBytes) {
    return InvalidArgument(where, ": bytes is ", p.bytes, ": legal are 1 to 2^60");
  }
  const std::string at = absl::StrCat(where, " at ", p.bytes, " bytes: ");
  if (Outside(p.median, kLeastSeconds, kMostSeconds)) {
    return InvalidArgument(at, "median is ", p.median, " seconds: legal are ", kLeastSeconds,
                           " to ", kMostSeconds);
  }
  if (p.p95 != 0 && Outside(p.p95, p.median, kMostSeconds)) {
    return InvalidArgument(at, "p95 is ", p.p95, " seconds: legal are 0 (unknown) or the median, ",
                           p.median, ", to ", kMostSeconds);
  }
  if (Outside(p.stddev, 0, kMostSeconds)) {
    return InvalidArgument(at, "stddev is ", p.stddev, " seconds: legal are 0 to ", kMostSeconds);
  }
  if (p.samples < 1) return InvalidArgument(at, "samples is ", p.samples, ", must be at least 1");
  return absl::OkStatus();
}

absl::Status CheckCurve(const ProfileCurve& c, int64_t gpus_per_node, int64_t nodes) {
  if (ProfileOperation(c.op) < 0) {
    return InvalidArgument("a curve of ", StepKindName(c.op),
                           ": profiles hold all_gather, reduce_scatter, all_reduce, broadcast and "
                           "all_to_all");
  }
  const std::string where = absl::StrCat(StepKindName(c.op), " on ", c.gpus, "x", c.nodes);
  if (c.gpus < 1 || c.gpus > gpus_per_node || c.nodes < 1 || c.nodes > nodes) {
    return InvalidArgument(where, " is beyond the cluster of ", gpus_per_node, " GPUs per node x ",
                           nodes, " nodes");
  }
  if (c.gpus * c.nodes == 1) return InvalidArgument(where, ": a group of one has no collectives");
  if (c.points.empty()) return InvalidArgument(where, " has no points");
  if (c.points.size() > kMostPoints) {
    return InvalidArgument(where, " has ", c.points.size(), " points: legal are 1 to ",
                           kMostPoints);
  }
  for (size_t i = 0; i < c.points.size(); ++i) {
    LINS_RETURN_IF_ERROR(CheckPoint(c.points[i], where));
    if (i > 0 && c.points[i].bytes == c.points[i - 1].bytes) {
      return InvalidArgument(where, " has ", c.points[i].bytes, " bytes twice");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCompute(const ComputeProfile& compute) {
  if (Outside(compute.flops_per_second, 0, 1e21)) {
    return InvalidArgument("flops_per_second is ", compute.flops_per_second,
                           ": legal are 0 (unknown) to 1e21");
  }
  if (Outside(compute.overlap_slowdown, 1, 1000)) {
    return InvalidArgument("overlap_slowdown is ", compute.overlap_slowdown,
                           ": legal are 1 (none) to 1000");
  }
  for (const auto& [unit, s] : compute.units) {
    if (Outside(s.forward, 0, kMostSeconds) || Outside(s.backward, 0, kMostSeconds)) {
      return InvalidArgument("unit '", unit, "' computes ", s.forward, " s forward and ",
                             s.backward, " s backward: legal are 0 to ", kMostSeconds);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Profile> Profile::Create(std::string name, std::string source, int64_t gpus_per_node,
                                        int64_t nodes, std::vector<ProfileCurve> curves,
                                        ComputeProfile compute,
                                        std::map<std::string, std::string> environment) {
  const std::string of = absl::StrCat("profile '", name, "': ");
  const auto error = [&of](const absl::Status& status) {
    return InvalidArgument(of, status.message());
  };
  if (gpus_per_node < 1 || gpus_per_node > kMostGpus || nodes < 1 || nodes > kMostNodes) {
    return InvalidArgument(of, gpus_per_node, " GPUs per node x ", nodes, " nodes: legal are 1 to ",
                           kMostGpus, " x 1 to ", kMostNodes);
  }
  std::set<std::tuple<StepKind, int64_t, int64_t>> seen;
  for (ProfileCurve& c : curves) {
    std::sort(c.points.begin(), c.points.end(),
              [](const ProfilePoint& a, const ProfilePoint& b) { return a.bytes < b.bytes; });
    if (const absl::Status s = CheckCurve(c, gpus_per_node, nodes); !s.ok()) return error(s);
    if (!seen.insert({c.op, c.gpus, c.nodes}).second) {
      return InvalidArgument(of, StepKindName(c.op), " on ", c.gpus, "x", c.nodes,
                             " is there twice");
    }
  }
  std::vector<absl::string_view> missing;
  for (StepKind op : kProfileOperations) {
    const auto of_op = [op](const ProfileCurve& c) { return c.op == op; };
    if (std::none_of(curves.begin(), curves.end(), of_op)) missing.push_back(StepKindName(op));
  }
  if (!missing.empty()) {
    return InvalidArgument(of, "no times of ", absl::StrJoin(missing, ", "));
  }
  if (const absl::Status s = CheckCompute(compute); !s.ok()) return error(s);

  Profile out;
  out.name_ = std::move(name);
  out.source_ = std::move(source);
  out.gpus_per_node_ = gpus_per_node;
  out.nodes_ = nodes;
  out.meshes_ = std::make_shared<const ProfileMeshes>(gpus_per_node, curves);
  out.curves_ = std::move(curves);
  out.compute_ = std::move(compute);
  out.environment_ = std::move(environment);
  return out;
}

std::vector<std::string> Profile::ShippedNames() {
  std::vector<std::string> out;
  for (const ShippedProfile& p : ShippedProfiles()) out.emplace_back(p.name);
  return out;
}

absl::StatusOr<Profile> Profile::Load(absl::string_view name_or_path) {
  for (const ShippedProfile& p : ShippedProfiles()) {
    if (p.name == name_or_path) return FromJson(p.json, p.name);
  }
  const std::string path(name_or_path);
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  // Reading a folder opens and then fails; an empty file is for the parser to refuse.
  if (!file || (file.peek() != EOF && !(text << file.rdbuf())) || file.bad()) {
    return absl::NotFoundError(absl::StrCat(
        "no profile '", name_or_path, "': neither a file that can be read nor a shipped name (",
        absl::StrJoin(ShippedNames(), ", "), ")"));
  }
  return FromJson(text.str(), path);
}

absl::StatusOr<Estimate> Profile::Time(StepKind op, int64_t bytes, int64_t gpus,
                                       int64_t nodes) const {
  if (ProfileOperation(op) < 0) {
    return InvalidArgument("no profile times ", StepKindName(op),
                           ": legal are all_gather, reduce_scatter, all_reduce, broadcast and "
                           "all_to_all");
  }
  if (bytes < 0) return InvalidArgument("bytes is ", bytes, ", must be at least 0");
  if (gpus < 1 || gpus > gpus_per_node_ || nodes < 1) {
    return InvalidArgument("mesh ", gpus, "x", nodes, " on profile '", name_, "': legal are 1 to ",
                           gpus_per_node_, " GPUs per node x at least 1 node");
  }
  Estimate out;
  if (bytes == 0 || (gpus == 1 && nodes == 1)) return out;
  const ProfileMeshes::Answer answer = meshes_->Time(op, bytes, gpus, nodes);
  if (answer.seconds < 0) {
    return InvalidArgument("profile '", name_, "': ", meshes_->Derivation(op, gpus, nodes));
  }
  out.seconds = answer.seconds;
  out.extrapolated = answer.derived || answer.source != PointSource::kMeasured;
  if (!out.extrapolated) return out;
  std::vector<std::string> why;
  if (answer.derived) why.push_back(meshes_->Derivation(op, gpus, nodes));
  if (answer.source == PointSource::kBelow) {
    why.push_back(absl::StrCat(bytes, " bytes are below the measured sizes"));
  } else if (answer.source == PointSource::kAbove) {
    why.push_back(absl::StrCat(bytes, " bytes are above the measured sizes"));
  } else if (answer.source == PointSource::kBetweenRegimes) {
    why.push_back(absl::StrCat(bytes, " bytes lie between two regimes"));
  }
  out.why = absl::StrJoin(why, "; ");
  return out;
}

double Profile::Seconds(StepKind op, int64_t bytes, int64_t gpus, int64_t nodes) const {
  if (op == StepKind::kSlice || op == StepKind::kLocal) return 0;
  if (op == StepKind::kPermute || op == StepKind::kExchange) op = StepKind::kAllToAll;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (bytes < 0 || gpus < 1 || gpus > gpus_per_node_ || nodes < 1) return kInfinity;
  if (bytes == 0 || (gpus == 1 && nodes == 1)) return 0;
  const double seconds = meshes_->Time(op, bytes, gpus, nodes).seconds;
  return seconds < 0 ? kInfinity : seconds;
}

absl::Status Profile::CanPrice(int64_t gpus, int64_t nodes) const {
  for (StepKind op : kProfileOperations) {
    for (int64_t g : {int64_t{1}, gpus}) {
      for (int64_t n : {int64_t{1}, nodes}) LINS_RETURN_IF_ERROR(Time(op, 1, g, n).status());
    }
  }
  return absl::OkStatus();
}

std::vector<Profile::Spike> Profile::Spikes() const {
  std::vector<Spike> out;
  for (const ProfileCurve& c : curves_) {
    const FittedCurve fit = FitCurve(c.points);
    for (size_t i : fit.spikes) {
      const ProfilePoint& p = c.points[i];
      out.push_back({c.op, c.gpus, c.nodes, p.bytes, p.median, fit.time.Seconds(p.bytes)});
    }
  }
  return out;
}

std::vector<Profile::RegimeChange> Profile::RegimeChanges() const {
  std::vector<RegimeChange> out;
  for (const ProfileCurve& c : curves_) {
    for (const FittedCurve::Change& change : FitCurve(c.points).changes) {
      out.push_back({c.op, c.gpus, c.nodes, static_cast<int64_t>(change.below),
                     static_cast<int64_t>(change.above)});
    }
  }
  return out;
}

}  // namespace lins
