#include "lins_policy/model_spec.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "mesh/error.h"

namespace lins {
namespace {

// Beyond these a product of sizes could overflow 64 bits; no real model comes near.
constexpr int64_t kMostParameters = int64_t{1} << 45;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostSize = int64_t{1} << 40;

// FlashAttention keeps no score matrix: what a block keeps is a multiple of batch x sequence x
// hidden, 28 bytes in half precision (norms, projections and a SwiGLU of 8/3 hidden).
constexpr int64_t kBlockActivationBytes = 28;
constexpr int64_t kHiddenBytes = 2;        // an activation in half precision
constexpr int64_t kBytesOfALogit = 2 + 4;  // half precision, and the loss' fp32 copy

absl::Status CheckSize(absl::string_view what, int64_t value, int64_t least = 1) {
  if (value >= least && value <= kMostSize) return absl::OkStatus();
  return InvalidArgument(what, " is ", value, ": legal are ", least, " to ", kMostSize);
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::Status ValidateUnit(const Unit& u) {
  const auto fail = [&](const auto&... what) {
    return InvalidArgument("unit '", u.name, "': ", what...);
  };
  if (u.parameters < 0 || u.parameters > kMostParameters) {
    return fail(u.parameters, " parameters: legal are 0 to ", kMostParameters);
  }
  if (u.repeat < 1 || u.repeat > 1'000'000) {
    return fail("repeat=", u.repeat, ": legal are 1 to 1000000");
  }
  if (u.frozen < 0 || u.frozen > u.parameters) {
    return fail("frozen=", u.frozen, " of ", u.parameters, " parameters");
  }
  for (int64_t bytes : {u.activation_bytes, u.boundary_bytes}) {
    if (bytes < 0 || bytes > kMostBytes) {
      return fail("activation_bytes and boundary_bytes are 0 to ", kMostBytes, ", not ", bytes);
    }
  }
  for (double x : {u.forward_flops, u.forward_seconds, u.backward_seconds}) {
    if (!std::isfinite(x) || x < 0) return fail("flops and seconds are finite and >= 0, not ", x);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Recompute> ParseRecompute(absl::string_view name) {
  for (const Recompute r : {Recompute::kNone, Recompute::kFull}) {
    if (RecomputeName(r) == name) return r;
  }
  return InvalidArgument("unknown recompute '", name, "': legal are 'none' and 'full'");
}

absl::string_view RecomputeName(Recompute recompute) {
  return recompute == Recompute::kFull ? "full" : "none";
}

absl::StatusOr<ModelSpec> ModelSpec::Llama(absl::string_view size, const TrainingShape& training) {
  if (size == "7B") return Llama("llama-7B", {4096, 32, 11008}, training);
  if (size == "13B") return Llama("llama-13B", {5120, 40, 13824}, training);
  // The paper's own: hidden 6144 and 60 layers make 27.6e9 parameters with this ffn.
  if (size == "30B") return Llama("llama-30B", {6144, 60, 16384}, training);
  return InvalidArgument("unknown size '", size,
                         "': legal are 7B, 13B and 30B, or the sizes themselves (hidden, layers, "
                         "ffn, vocabulary)");
}

absl::StatusOr<ModelSpec> ModelSpec::Llama(std::string name, const LlamaShape& s,
                                           const TrainingShape& training) {
  const std::pair<absl::string_view, int64_t> sizes[] = {{"hidden", s.hidden},
                                                         {"layers", s.layers},
                                                         {"ffn", s.ffn},
                                                         {"vocabulary", s.vocabulary},
                                                         {"seq_len", training.seq_len},
                                                         {"micro_batch", training.micro_batch}};
  for (const auto& [what, value] : sizes) LINS_RETURN_IF_ERROR(CheckSize(what, value));
  // A product of three sizes must stay far from 2^63.
  if (static_cast<double>(s.hidden) * (s.hidden + s.ffn + s.vocabulary) > kMostParameters / 8.0) {
    return InvalidArgument("hidden=", s.hidden, ", ffn=", s.ffn, ", vocabulary=", s.vocabulary,
                           " make a matrix beyond any machine");
  }
  if (s.heads < 0 || s.kv_heads < 0 || (s.heads > 0 && s.hidden % s.heads != 0) ||
      (s.kv_heads > 0 && (s.heads == 0 || s.heads % s.kv_heads != 0))) {
    return InvalidArgument("heads=", s.heads, " must divide hidden=", s.hidden,
                           ", and kv_heads=", s.kv_heads, " must divide heads");
  }
  const int64_t h = s.hidden;
  const int64_t kv = s.kv_heads > 0 ? h / s.heads * s.kv_heads : h;
  const int64_t matrices = 2 * h * h + 2 * h * kv + 3 * h * s.ffn;
  const double tokens = static_cast<double>(training.seq_len) * training.micro_batch;
  if (tokens * h * kBlockActivationBytes > kMostBytes ||
      tokens * s.vocabulary * kBytesOfALogit > kMostBytes) {
    return InvalidArgument("seq_len=", training.seq_len, " x micro_batch=", training.micro_batch,
                           " tokens are beyond any machine");
  }
  const int64_t t = static_cast<int64_t>(tokens);

  ModelSpec spec{.name = std::move(name), .units = {}, .training = training};
  Unit embedding{.name = "embedding", .parameters = s.vocabulary * h};
  Unit layer{.name = "layers", .parameters = matrices + 2 * h, .repeat = s.layers};
  // Matrices, and a causal attention: half of 4 x sequence x hidden a token.
  layer.forward_flops = 2.0 * matrices * tokens + 2.0 * training.seq_len * tokens * h;
  layer.activation_bytes = kBlockActivationBytes * t * h;
  layer.boundary_bytes = kHiddenBytes * t * h;
  Unit head{.name = "head", .parameters = h + (s.tied ? 0 : s.vocabulary * h)};
  head.forward_flops = 2.0 * s.vocabulary * h * tokens;
  head.activation_bytes = head.boundary_bytes = kHiddenBytes * t * h;
  spec.units = {embedding, layer, head};
  spec.logits_bytes = t * s.vocabulary * kBytesOfALogit;
  LINS_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

absl::Status ModelSpec::Validate() const {
  if (units.empty()) return InvalidArgument("model '", name, "' has no units");
  LINS_RETURN_IF_ERROR(CheckSize("seq_len", training.seq_len));
  LINS_RETURN_IF_ERROR(CheckSize("micro_batch", training.micro_batch));
  if (static_cast<double>(training.seq_len) * training.micro_batch > kMostSize) {
    return InvalidArgument("seq_len=", training.seq_len, " x micro_batch=", training.micro_batch,
                           " tokens at once: legal are up to ", kMostSize);
  }
  LINS_RETURN_IF_ERROR(CheckSize("in_flight", in_flight));
  const StateSizes& z = training.sizes;
  for (const auto& [what, bytes, least] :
       {std::tuple<absl::string_view, int64_t, int64_t>{"param", z.param, 1},
        {"grad", z.grad, 1},
        {"master", z.master, 0},
        {"moments", z.moments, 0}}) {
    if (bytes < least || bytes > 64) {
      return InvalidArgument(what, "=", bytes, " bytes per element: legal are ", least, " to 64");
    }
  }
  if (logits_bytes < 0 || logits_bytes > kMostBytes) {
    return InvalidArgument("logits_bytes=", logits_bytes, ": legal are 0 to ", kMostBytes);
  }
  std::set<absl::string_view> names;
  double total = 0, activations = 0;
  for (const Unit& u : units) {
    LINS_RETURN_IF_ERROR(ValidateUnit(u));
    if (u.name.empty()) return InvalidArgument("a unit of model '", name, "' has no name");
    if (!names.insert(u.name).second) {
      return InvalidArgument("two units of model '", name, "' are named '", u.name, "'");
    }
    total += static_cast<double>(u.parameters) * u.repeat;
    activations += static_cast<double>(u.activation_bytes + u.boundary_bytes) * u.repeat;
  }
  if (activations * in_flight > kMostBytes) {
    return InvalidArgument("model '", name, "' keeps ", activations * in_flight,
                           " bytes of activations: legal are up to ", kMostBytes);
  }
  if (total < 1) return InvalidArgument("model '", name, "' has no parameters");
  if (total > kMostParameters) {
    return InvalidArgument("model '", name, "' has ", total, " parameters: legal are up to ",
                           kMostParameters);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> ModelSpec::Parallel(int64_t tensor, int64_t pipeline) const {
  LINS_RETURN_IF_ERROR(Validate());
  LINS_RETURN_IF_ERROR(CheckSize("tensor_parallel", tensor));
  LINS_RETURN_IF_ERROR(CheckSize("pipeline_parallel", pipeline));
  ModelSpec out = *this;
  for (Unit& u : out.units) {
    u.parameters = CeilDiv(u.parameters, tensor);
    u.frozen = std::min(CeilDiv(u.frozen, tensor), u.parameters);
    u.forward_flops /= tensor;
    u.forward_seconds /= tensor;
    u.backward_seconds /= tensor;
    u.activation_bytes = CeilDiv(u.activation_bytes, tensor);
  }
  out.logits_bytes = CeilDiv(logits_bytes, tensor);
  if (pipeline == 1) return out;

  // The heaviest stage: its share of the repeated units, and the larger of the model's two ends.
  // The first stage keeps the activations of as many micro-batches as there are stages.
  const auto body =
      std::max_element(out.units.begin(), out.units.end(),
                       [](const Unit& a, const Unit& b) { return a.repeat < b.repeat; });
  if (body->repeat % pipeline != 0) {
    return InvalidArgument("pipeline_parallel=", pipeline, " does not divide the ", body->repeat,
                           " units '", body->name, "'");
  }
  const auto sum = [](auto begin, auto end) {
    int64_t n = 0;
    for (auto u = begin; u != end; ++u) n += u->parameters * u->repeat;
    return n;
  };
  body->repeat /= pipeline;
  if (sum(out.units.begin(), body) >= sum(std::next(body), out.units.end())) {
    out.units.erase(std::next(body), out.units.end());
    out.logits_bytes = 0;
  } else {
    out.units.erase(out.units.begin(), body);
  }
  out.in_flight = pipeline;
  LINS_RETURN_IF_ERROR(out.Validate());
  return out;
}

absl::StatusOr<ModelSpec> ModelSpec::WithMicroBatch(int64_t micro_batch) const {
  LINS_RETURN_IF_ERROR(Validate());
  LINS_RETURN_IF_ERROR(CheckSize("micro_batch", micro_batch));
  const double part = static_cast<double>(micro_batch) / training.micro_batch;
  // Beyond the largest legal size any will do: Validate() refuses it.
  const auto scale = [&](int64_t bytes) {
    return std::llround(std::min(static_cast<double>(bytes) * part, 2.0 * kMostBytes));
  };
  ModelSpec out = *this;
  for (Unit& u : out.units) {
    u.activation_bytes = scale(u.activation_bytes);
    u.boundary_bytes = scale(u.boundary_bytes);
    u.forward_flops *= part;
    u.forward_seconds *= part;
    u.backward_seconds *= part;
  }
  out.logits_bytes = scale(logits_bytes);
  out.training.micro_batch = micro_batch;
  LINS_RETURN_IF_ERROR(out.Validate());
  return out;
}

UnitLayouts LayoutsOf(const Unit& unit, const Policy& policy, const Mesh& mesh) {
  return MakeUnitLayouts(policy, PaddedTotal(unit.trainable(), mesh), mesh);
}

int64_t ModelSpec::trainable() const {
  int64_t n = 0;
  for (const Unit& u : units) n += u.repeat * u.trainable();
  return n;
}

int64_t ModelSpec::parameters() const {
  int64_t n = 0;
  for (const Unit& u : units) n += u.parameters * u.repeat;
  return n;
}

}  // namespace lins
