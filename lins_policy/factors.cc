#include "lins_policy/factors.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "mesh/error.h"

namespace lins {
namespace {

constexpr char kGrammar[] =
    "legal are a preset (ddp, zero1, zero2, zero3, fsdp2, hsdp, mics:<ranks>, zero++:<ranks>, "
    "megatron:<ranks>, paro-nig, paro-iig, paro-igg) or 'P=.. G=.. OS=..' with numbers like 8 or "
    "GPUs x nodes like "
    "8x2";

// Axis sizes in the order of factors.
std::vector<int64_t> Chain(const Mesh& mesh) {
  return std::vector<int64_t>(mesh.shape().rbegin(), mesh.shape().rend());
}

absl::StatusOr<Factors> ParseFactors(absl::string_view text, absl::string_view state,
                                     const Mesh& mesh) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  Factors out;
  for (const std::string& part : parts) {
    int64_t value;
    if (!absl::SimpleAtoi(part, &value) || value < 1) {
      return InvalidArgument("'", text, "' is no factor for ", state,
                             ": write a number of at least 1, or GPUs x ", "nodes like 4x1");
    }
    out.push_back(value);
  }
  if (out.size() == 1) return SpreadFactor(out[0], mesh);
  while (static_cast<int>(out.size()) > mesh.ndim() && out.back() == 1) out.pop_back();
  if (static_cast<int>(out.size()) > mesh.ndim()) {
    return InvalidArgument("factor ", text, " of ", state, " has more parts than ", mesh.ToString(),
                           " has axes");
  }
  out.resize(mesh.ndim(), 1);
  return out;
}

// Whether a state in `a` pieces becomes one in `b` pieces by cutting each piece further.
bool Divides(const Factors& a, const Factors& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i] % a[i] != 0) return false;
  }
  return true;
}

// Whether both can be cut along one chain. Empty: like P, which nests with all.
bool Nest(const Factors& a, const Factors& b) {
  return a.empty() || Divides(a, b) || Divides(b, a);
}

absl::StatusOr<Policy> Preset(absl::string_view name, const Mesh& mesh) {
  const std::pair<absl::string_view, absl::string_view> split =
      absl::StrSplit(name, absl::MaxSplits(':', 1));
  const Factors one(mesh.ndim(), 1), all(mesh.shape().rbegin(), mesh.shape().rend());
  if (split.first == "mics" || split.first == "zero++" || split.first == "megatron") {
    int64_t pieces;
    if (!absl::SimpleAtoi(split.second, &pieces)) {
      return InvalidArgument("'", name, "': ", split.first,
                             " needs the number of ranks in a group, for example ", split.first,
                             ":8");
    }
    LINS_ASSIGN_OR_RETURN(const Factors f, SpreadFactor(pieces, mesh));
    if (split.first == "mics") return Policy{f, f, f, {}};
    // Megatron's distributed optimizer over a part of the ranks: one instance of it in each.
    if (split.first == "megatron") return Policy{one, one, f, {}};
    return Policy{all, all, all, f};
  }
  if (name == "ddp") return Policy{one, one, one, {}};
  if (name == "zero1") return Policy{one, one, all, {}};
  if (name == "zero2") return Policy{one, all, all, {}};
  if (name == "zero3" || name == "fsdp2") return Policy{all, all, all, {}};
  Factors node = one;
  node[0] = all[0];
  if (name == "hsdp") return Policy{node, node, node, {}};
  // PaRO's classes: P, G and OS each not cut (n), cut within a node (i), or over all ranks (g).
  if (name == "paro-nig") return Policy{one, node, all, {}};
  if (name == "paro-iig") return Policy{node, node, all, {}};
  if (name == "paro-igg") return Policy{node, all, all, {}};
  return InvalidArgument("unknown policy '", name, "': ", kGrammar);
}

}  // namespace

int64_t Product(const Factors& f) {
  int64_t n = 1;
  for (int64_t x : f) n *= x;
  return n;
}

std::string FactorsToString(const Factors& f) { return absl::StrJoin(f, "x"); }

std::string Policy::ToString() const {
  std::string out = absl::StrCat("P=", FactorsToString(param), " G=", FactorsToString(grad),
                                 " OS=", FactorsToString(optim));
  if (!between.empty()) absl::StrAppend(&out, " between=", FactorsToString(between));
  return out;
}

absl::StatusOr<Factors> SpreadFactor(int64_t pieces, const Mesh& mesh) {
  Factors out;
  int64_t rest = pieces;
  for (int64_t size : Chain(mesh)) {
    // Whole axes first; the last one in use takes what is left.
    const int64_t here = rest % size == 0 ? size : rest;
    if (rest < 1 || size % here != 0) {
      return InvalidArgument("factor ", pieces, " does not divide along ", mesh.ToString(),
                             ": it must divide the ranks of a node (", Chain(mesh)[0],
                             "), or be a multiple of them that divides the slower axes");
    }
    out.push_back(here);
    rest /= here;
  }
  if (rest != 1) {
    return InvalidArgument("factor ", pieces, " is larger than the ", mesh.size(), " ranks of ",
                           mesh.ToString());
  }
  return out;
}

absl::StatusOr<Space> ParseSpace(absl::string_view name) {
  for (const Space s : {Space::kPaper, Space::kNested, Space::kFull}) {
    if (SpaceName(s) == name) return s;
  }
  return InvalidArgument("unknown space '", name, "': legal are 'paper', 'nested' and 'full'");
}

std::string SpaceName(Space space) {
  return space == Space::kPaper ? "paper" : space == Space::kNested ? "nested" : "full";
}

absl::Status ValidatePolicy(const Policy& policy, const Mesh& mesh, Space space) {
  const std::vector<int64_t> chain = Chain(mesh);
  const std::pair<absl::string_view, const Factors*> states[] = {{"between", &policy.between},
                                                                 {"P", &policy.param},
                                                                 {"G", &policy.grad},
                                                                 {"OS", &policy.optim}};
  for (const auto& [name, f] : states) {
    if (f == &policy.between && f->empty()) continue;
    if (static_cast<int>(f->size()) != mesh.ndim()) {
      return InvalidArgument("factors ", FactorsToString(*f), " of ", name,
                             " need one number per axis of ", mesh.ToString());
    }
    for (size_t i = 0; i < f->size(); ++i) {
      if ((*f)[i] < 1 || chain[i] % (*f)[i] != 0) {
        return InvalidArgument("factor ", FactorsToString(*f), " of ", name, " does not divide ",
                               mesh.ToString(), ": ", (*f)[i], " is no divisor of ", chain[i]);
      }
      if (i > 0 && (*f)[i] > 1 && (*f)[i - 1] != chain[i - 1]) {
        return InvalidArgument("factor ", FactorsToString(*f), " of ", name, " cuts over axis '",
                               mesh.axes()[mesh.ndim() - 1 - i], "' without using all ",
                               chain[i - 1], " of '", mesh.axes()[mesh.ndim() - i],
                               "': fill the faster axis first");
      }
    }
  }
  for (int i = policy.between.empty() ? 1 : 0; i < 3; ++i) {
    const auto& [fine, a] = states[i];
    const auto& [coarse, b] = states[i + 1];
    if (Divides(*a, *b)) continue;
    if (i == 1 && space == Space::kFull && Divides(*b, *a) && Divides(*a, policy.optim)) continue;
    return InvalidArgument(
        fine, "=", FactorsToString(*a), " is cut finer than ", coarse, "=", FactorsToString(*b),
        ", or does not divide it: legal are ",
        i == 0 ? "between <= P, a divisor of it" : "P <= G <= OS, each a divisor of the next");
  }
  if (!Nest(policy.between, policy.grad)) {
    return InvalidArgument("between=", FactorsToString(policy.between),
                           " and G=", FactorsToString(policy.grad),
                           " lie on no common chain: one must divide the other");
  }
  return absl::OkStatus();
}

absl::StatusOr<Policy> ParsePolicy(absl::string_view text, const Mesh& mesh, Space space) {
  if (!absl::StrContains(text, '=')) {
    LINS_ASSIGN_OR_RETURN(Policy preset, Preset(text, mesh));
    LINS_RETURN_IF_ERROR(ValidatePolicy(preset, mesh, space));
    return preset;
  }
  Policy policy;
  for (absl::string_view part : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> kv =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    Factors* state = kv.first == "P"         ? &policy.param
                     : kv.first == "G"       ? &policy.grad
                     : kv.first == "OS"      ? &policy.optim
                     : kv.first == "between" ? &policy.between
                                             : nullptr;
    if (!state)
      return InvalidArgument("'", part, "' in policy '", text, "': states are P, G and OS; ",
                             kGrammar);
    if (!state->empty()) return InvalidArgument(kv.first, " is given twice in policy '", text, "'");
    LINS_ASSIGN_OR_RETURN(*state, ParseFactors(kv.second, kv.first, mesh));
  }
  if (policy.param.empty() || policy.grad.empty() || policy.optim.empty()) {
    return InvalidArgument("policy '", text, "' must give all of P, G and OS; ", kGrammar);
  }
  LINS_RETURN_IF_ERROR(ValidatePolicy(policy, mesh, space));
  return policy;
}

std::vector<Factors> LegalFactors(int64_t gpus_per_node, int64_t nodes) {
  std::vector<Factors> out;
  for (int64_t g = 1; g <= gpus_per_node; ++g) {
    if (gpus_per_node % g == 0) out.push_back({g, 1});
  }
  for (int64_t n = 2; n <= nodes; ++n) {
    if (nodes % n == 0) out.push_back({gpus_per_node, n});
  }
  return out;
}

std::vector<Policy> LegalPolicies(int64_t gpus_per_node, int64_t nodes, Space space) {
  const std::vector<Factors> all = LegalFactors(gpus_per_node, nodes);
  std::vector<Policy> out;
  for (const Factors& p : all) {
    for (const Factors& g : all) {
      const bool wide = space == Space::kFull && Divides(g, p);
      if (!Divides(p, g) && !wide) continue;
      for (const Factors& o : all) {
        if (!Divides(g, o) || !Divides(p, o)) continue;
        if (space == Space::kPaper && g != p && g != o) continue;
        out.push_back({p, g, o, {}});
        if (space != Space::kFull) continue;
        for (const Factors& b : all) {
          if (b != p && Divides(b, p) && Nest(b, g)) out.push_back({p, g, o, b});
        }
      }
    }
  }
  return out;
}

std::vector<Policy> LegalPolicies(const Mesh& mesh, Space space) {
  return LegalPolicies(mesh.shape()[1], mesh.shape()[0], space);
}

std::vector<std::string> PresetNames() {
  return {"ddp",    "zero1",    "zero2",      "zero3",    "fsdp2",    "hsdp",
          "mics:8", "zero++:8", "megatron:8", "paro-nig", "paro-iig", "paro-igg"};
}

}  // namespace lins
