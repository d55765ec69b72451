// A profile: measured times of collectives on a cluster, and what they say about any message.
//
//   Profile p = *Profile::Load("a800");                       // a shipped name, or a path
//   p.Time(StepKind::kAllGather, 1 << 30, 8, 2)->seconds      // 8 GPUs of each of 2 nodes
//
// A mesh `gpus x nodes` is a group of `gpus` ranks on each of `nodes` nodes, measured while all
// sibling groups of the cluster run the same operation. Message bytes v: all-gather, the gathered
// bytes; reduce-scatter, the unreduced bytes; all-reduce, the buffer; broadcast, the message;
// all-to-all, what one rank sends in all.
//
// How a time is found (docs/profile.md has the formulas):
//   measured       a point of its mesh, or the line between two neighbouring points of one regime
//   extrapolated   between two regimes, outside the measured sizes, or on a mesh never measured
// A lone point far above both neighbours is a spike: it is kept in the file, and not used. Times
// never fall as bytes grow. A profile may be asked from several threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/redistribution.h"

namespace lins {

class ProfileMeshes;

struct ProfilePoint {
  int64_t bytes = 0;
  double median = 0, p95 = 0, stddev = 0;  // seconds, over samples; p95 and stddev 0 if unknown
  int64_t samples = 1;
  std::string algorithm;  // "" if unknown
};

struct ProfileCurve {
  StepKind op;  // all_gather, reduce_scatter, all_reduce, broadcast or all_to_all
  int64_t gpus = 1, nodes = 1;
  std::vector<ProfilePoint> points;  // Create sorts them by bytes
};

// What was measured of computing, all of it optional.
struct ComputeProfile {
  double flops_per_second = 0;    // of one GPU on large matrix products; 0: unknown
  double overlap_slowdown = 1.0;  // time of a computation while a collective runs / alone
  struct Seconds {
    double forward = 0, backward = 0;  // of one micro-batch
  };
  std::map<std::string, Seconds> units;  // by unit name
};

// Link speeds of a cluster that has not been measured.
struct LinkModel {
  int64_t gpus_per_node = 8, nodes = 1;
  double intra_bandwidth = 200e9;  // bytes per second into one GPU from its own node
  double inter_bandwidth = 100e9;  // bytes per second into one node, all of its NICs
  double intra_latency = 4e-6;     // seconds, of one hop
  double inter_latency = 12e-6;
};

struct Estimate {
  double seconds = 0;
  bool extrapolated = false;
  std::string why;  // what it was extrapolated from; "" if measured
};

class Profile : public CostModel {
 public:
  // A shipped name ("a800"), or the path of a file in the project's format or in that of the
  // published A800 table (docs/profile.md). Errors name the file, the place and what is legal.
  static absl::StatusOr<Profile> Load(absl::string_view name_or_path);
  static absl::StatusOr<Profile> FromJson(absl::string_view text, absl::string_view name);
  static absl::StatusOr<Profile> Model(const LinkModel& links);  // source() is "model"
  // Checked as a file is: operations missing, times not positive, sizes twice, meshes beyond the
  // cluster are errors.
  static absl::StatusOr<Profile> Create(std::string name, std::string source, int64_t gpus_per_node,
                                        int64_t nodes, std::vector<ProfileCurve> curves,
                                        ComputeProfile compute = {},
                                        std::map<std::string, std::string> environment = {});
  static std::vector<std::string> ShippedNames();

  std::string ToJson() const;
  absl::Status Save(const std::string& path) const;  // to a temporary name, then renamed

  // Errors: an operation without collectives (slice, local), bytes < 0, gpus outside
  // 1..gpus_per_node, nodes < 1. A group of one rank takes 0 seconds, and so do 0 bytes.
  // Nor is there an answer over more nodes than one when one was all that was measured.
  absl::StatusOr<Estimate> Time(StepKind op, int64_t bytes, int64_t gpus, int64_t nodes) const;
  // The same for the planner: slice, local and groups of one are free, permute and exchange cost
  // what an all-to-all does. Infinity where Time is an error.
  double Seconds(StepKind op, int64_t bytes, int64_t gpus, int64_t nodes) const override;

  // OK when every group of a mesh of `nodes` x `gpus` ranks has a time for every operation.
  absl::Status CanPrice(int64_t gpus, int64_t nodes) const;

  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }  // "measured", "model", or a citation
  int64_t gpus_per_node() const { return gpus_per_node_; }
  int64_t nodes() const { return nodes_; }  // the most that were measured
  const std::vector<ProfileCurve>& curves() const { return curves_; }
  const ComputeProfile& compute() const { return compute_; }
  const std::map<std::string, std::string>& environment() const { return environment_; }

  struct Spike {
    StepKind op;
    int64_t gpus, nodes, bytes;
    double seconds, used;  // as measured, and as used
  };
  std::vector<Spike> Spikes() const;
  struct RegimeChange {
    StepKind op;
    int64_t gpus, nodes, below, above;  // between these message bytes
  };
  std::vector<RegimeChange> RegimeChanges() const;

 private:
  std::string name_, source_;
  int64_t gpus_per_node_ = 1, nodes_ = 1;
  std::vector<ProfileCurve> curves_;
  ComputeProfile compute_;
  std::map<std::string, std::string> environment_;
  std::shared_ptr<const ProfileMeshes> meshes_;  // shared by copies
};

}  // namespace lins
