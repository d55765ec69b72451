// lins._planning, third part: profiles.
#include "profile.h"

#include <pybind11/stl/filesystem.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "lins_policy/measure_plan.h"

namespace lins {
namespace {

using UnitSeconds = std::map<std::string, std::map<std::string, double>>;

void BindPoints(py::module_& m) {
  py::class_<ProfilePoint>(m, "ProfilePoint", "One measured message size of a curve.")
      .def_readonly("bytes", &ProfilePoint::bytes)
      .def_readonly("median", &ProfilePoint::median, "Seconds.")
      .def_readonly("p95", &ProfilePoint::p95, "Seconds; 0 if unknown.")
      .def_readonly("stddev", &ProfilePoint::stddev, "Seconds; 0 if unknown.")
      .def_readonly("samples", &ProfilePoint::samples)
      .def_readonly("algorithm", &ProfilePoint::algorithm)
      .def("__repr__", [](const ProfilePoint& p) {
        return absl::StrCat("ProfilePoint(bytes=", p.bytes, ", median=", p.median, ", p95=", p.p95,
                            ", stddev=", p.stddev, ", samples=", p.samples, ")");
      });
  py::class_<ProfileCurve>(m, "ProfileCurve", "One operation on one mesh, by message size.")
      .def_property_readonly("op", [](const ProfileCurve& c) { return Str(StepKindName(c.op)); })
      .def_readonly("gpus", &ProfileCurve::gpus)
      .def_readonly("nodes", &ProfileCurve::nodes)
      .def_readonly("points", &ProfileCurve::points)
      .def("__repr__", [](const ProfileCurve& c) {
        return absl::StrCat("ProfileCurve(", Str(StepKindName(c.op)), " on ", c.gpus, "x", c.nodes,
                            ", ", c.points.size(), " sizes)");
      });
  py::class_<Estimate>(m, "Estimate", "A time, and whether it was measured.")
      .def_readonly("seconds", &Estimate::seconds)
      .def_readonly("extrapolated", &Estimate::extrapolated)
      .def_readonly("why", &Estimate::why, "What it was extrapolated from; '' if measured.")
      .def("__repr__", [](const Estimate& e) {
        return absl::StrCat("Estimate(", e.seconds, " s",
                            e.extrapolated ? absl::StrCat(", extrapolated: ", e.why) : "", ")");
      });
}

py::list SpikeList(const Profile& p) {
  py::list out;
  for (const Profile::Spike& s : p.Spikes()) {
    py::dict d;
    d["op"] = Str(StepKindName(s.op));
    d["gpus"] = s.gpus;
    d["nodes"] = s.nodes;
    d["bytes"] = s.bytes;
    d["seconds"] = s.seconds;
    d["used"] = s.used;
    out.append(d);
  }
  return out;
}

py::list ChangeList(const Profile& p) {
  py::list out;
  for (const Profile::RegimeChange& c : p.RegimeChanges()) {
    py::dict d;
    d["op"] = Str(StepKindName(c.op));
    d["gpus"] = c.gpus;
    d["nodes"] = c.nodes;
    d["below"] = c.below;
    d["above"] = c.above;
    out.append(d);
  }
  return out;
}

py::dict ComputeDict(const Profile& p) {
  py::dict units;
  for (const auto& [name, s] : p.compute().units) {
    py::dict unit;
    unit["forward"] = s.forward;
    unit["backward"] = s.backward;
    units[py::str(name)] = unit;
  }
  py::dict out;
  out["flops_per_second"] = p.compute().flops_per_second;
  out["overlap_slowdown"] = p.compute().overlap_slowdown;
  out["units"] = units;
  return out;
}

}  // namespace

Profile ToProfile(const py::object& profile) {
  if (py::isinstance<Profile>(profile)) return profile.cast<Profile>();
  if (py::isinstance<py::str>(profile) || py::hasattr(profile, "__fspath__")) {
    return ValueOrThrow(Profile::Load(profile.cast<std::filesystem::path>().string()));
  }
  throw Error("profile " + py::repr(profile).cast<std::string>() +
              ": legal are a lins.Profile, a shipped name ('a800') and the path of a file");
}

void BindProfile(py::module_& m) {
  BindPoints(m);
  py::class_<Profile>(
      m, "Profile",
      "Measured times of collectives on a cluster, by operation, mesh and message bytes.\n\n"
      "Profile.load('a800').time('all_gather', 2**30, gpus=8, nodes=2) gives the seconds of an\n"
      "all-gather of 1 GiB among 8 GPUs of each of 2 nodes, while all sibling groups do the same.\n"
      "Bytes: all_gather, the gathered ones; reduce_scatter, the unreduced ones; all_reduce, the\n"
      "buffer; broadcast, the message; all_to_all, what one rank sends in all.")
      .def_static(
          "load", [](const py::object& name_or_path) { return ToProfile(name_or_path); },
          py::arg("name_or_path"),
          "A shipped name ('a800') or the path of a file, in the project's own format or that of\n"
          "the published A800 table with a key 'gpus_per_node'. Raises LinsError for a file that\n"
          "is damaged or makes no sense, with the place.")
      .def_static(
          "model",
          [](int64_t gpus_per_node, int64_t nodes, double intra_bandwidth, double inter_bandwidth,
             double intra_latency, double inter_latency) {
            return ValueOrThrow(Profile::Model({gpus_per_node, nodes, intra_bandwidth,
                                                inter_bandwidth, intra_latency, inter_latency}));
          },
          py::kw_only(), py::arg("gpus_per_node") = 8, py::arg("nodes") = 1,
          py::arg("intra_bandwidth") = 200e9, py::arg("inter_bandwidth") = 100e9,
          py::arg("intra_latency") = 4e-6, py::arg("inter_latency") = 12e-6,
          "A profile worked out from link speeds, for a cluster not measured yet; its source is\n"
          "'model'. Bandwidths in bytes per second: into one GPU from its own node, and into one\n"
          "node through all of its NICs. Latencies in seconds, of one hop.")
      .def_static(
          "from_json",
          [](const std::string& text, const std::string& name) {
            return ValueOrThrow(Profile::FromJson(text, name));
          },
          py::arg("text"), py::arg("name") = "profile",
          "Reads a profile from JSON; name is for errors, and for files that have none.")
      .def_static("shipped_names", &Profile::ShippedNames)
      .def("to_json", &Profile::ToJson)
      .def(
          "save",
          [](const Profile& p, const std::filesystem::path& path) {
            ThrowIfError(p.Save(path.string()));
          },
          py::arg("path"), "Writes the file under a temporary name, then renames it.")
      .def(
          "time",
          [](const Profile& p, const std::string& op, int64_t nbytes, int64_t gpus, int64_t nodes) {
            return ValueOrThrow(p.Time(ParseProfileOp(op), nbytes, gpus, nodes)).seconds;
          },
          py::arg("op"), py::arg("nbytes"), py::kw_only(), py::arg("gpus"), py::arg("nodes") = 1,
          "Seconds of one operation among `gpus` GPUs of each of `nodes` nodes.")
      .def(
          "estimate",
          [](const Profile& p, const std::string& op, int64_t nbytes, int64_t gpus, int64_t nodes) {
            return ValueOrThrow(p.Time(ParseProfileOp(op), nbytes, gpus, nodes));
          },
          py::arg("op"), py::arg("nbytes"), py::kw_only(), py::arg("gpus"), py::arg("nodes") = 1,
          "As time, with .seconds, .extrapolated and .why.")
      .def(
          "with_compute",
          [](const Profile& p, std::optional<double> flops_per_second,
             std::optional<double> overlap_slowdown, const std::optional<UnitSeconds>& units) {
            ComputeProfile compute = p.compute();
            compute.flops_per_second = flops_per_second.value_or(compute.flops_per_second);
            compute.overlap_slowdown = overlap_slowdown.value_or(compute.overlap_slowdown);
            if (units) compute.units.clear();
            for (const auto& [name, seconds] : units.value_or(UnitSeconds())) {
              if (seconds.size() != 2 || !seconds.contains("forward") ||
                  !seconds.contains("backward")) {
                throw Error("unit '" + name + "' needs seconds of 'forward' and 'backward'");
              }
              compute.units[name] = {seconds.at("forward"), seconds.at("backward")};
            }
            return ValueOrThrow(Profile::Create(p.name(), p.source(), p.gpus_per_node(), p.nodes(),
                                                p.curves(), std::move(compute), p.environment()));
          },
          py::kw_only(), py::arg("flops_per_second") = py::none(),
          py::arg("overlap_slowdown") = py::none(), py::arg("units") = py::none(),
          "A copy with what is given of compute replaced; units as lins.measure_units gives them.")
      .def_property_readonly("name", &Profile::name)
      .def_property_readonly("source", &Profile::source, "'measured', 'model', or a citation.")
      .def_property_readonly("gpus_per_node", &Profile::gpus_per_node)
      .def_property_readonly("nodes", &Profile::nodes, "The most that were measured.")
      .def_property_readonly("curves", &Profile::curves)
      .def_property_readonly("environment", &Profile::environment)
      .def_property_readonly("compute", &ComputeDict,
                             "{'flops_per_second', 'overlap_slowdown', 'units': {name: {'forward', "
                             "'backward'}}}; 0 if unknown.")
      .def_property_readonly("spikes", &SpikeList,
                             "Points that are not used, as dicts with what is used in their place.")
      .def_property_readonly("regime_changes", &ChangeList,
                             "Between which message bytes the time follows another line, as dicts.")
      .def("__repr__",
           [](const Profile& p) {
             return absl::StrCat("Profile('", p.name(), "', ", p.gpus_per_node(),
                                 " GPUs per node x ", p.nodes(), " nodes, ", p.curves().size(),
                                 " curves, source '", p.source(), "')");
           })
      .def(py::pickle([](const Profile& p) { return py::str(p.ToJson()); },
                      [](const py::str& text) {
                        return ValueOrThrow(Profile::FromJson(text.cast<std::string>(), "pickle"));
                      }));
  m.def(
      "measurements",
      [](int64_t gpus_per_node, int64_t nodes, int64_t min_bytes, int64_t max_bytes, int64_t factor,
         bool sub_meshes) {
        py::list out;
        const MeasureGrid grid{min_bytes, max_bytes, factor, sub_meshes};
        for (const MeasureTask& t : ValueOrThrow(PlanMeasurements(gpus_per_node, nodes, grid))) {
          out.append(py::make_tuple(Str(StepKindName(t.op)), t.gpus, t.nodes, t.bytes));
        }
        return out;
      },
      py::arg("gpus_per_node"), py::arg("nodes"), py::kw_only(), py::arg("min_bytes"),
      py::arg("max_bytes"), py::arg("factor"), py::arg("sub_meshes"),
      "[(op, gpus, nodes, bytes)] that a profile consists of, most useful first.");
}

}  // namespace lins
