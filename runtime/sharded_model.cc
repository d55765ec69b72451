#include "runtime/sharded_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/trace.h"
#include "mesh/error.h"
#include "runtime/autograd_hooks.h"
#include "runtime/verification.h"

namespace lins {
namespace {

// Everything that ranks must agree on before the first collective of a unit.
std::string Describe(const std::vector<UnitSpec>& units, const ShardOptions& o) {
  std::string out =
      absl::StrCat("prefetch=", o.prefetch, " overlap=", o.overlap, " update=", o.overlap_update,
                   " family=", FamilyName(o.family), " bucket_bytes=", o.bucket_bytes);
  if (o.offload_optimizer) absl::StrAppend(&out, " offload=", o.offload_chunk_bytes);
  const auto dtype = [&](const char* name, const std::optional<at::ScalarType>& t) {
    if (t) absl::StrAppend(&out, " ", name, "=", c10::toString(*t));
  };
  dtype("param_dtype", o.param_dtype);
  dtype("grad_dtype", o.grad_dtype);
  dtype("reduce_dtype", o.reduce_dtype);
  for (const UnitSpec& u : units) {
    absl::StrAppend(&out, "\nunit '", u.name, "' ", u.policy.ToString());
    for (const NamedParam& p : u.params) {
      absl::StrAppend(&out, "\n  ", p.name, " (", absl::StrJoin(p.param.sizes(), ", "), ") ",
                      c10::toString(p.param.scalar_type()),
                      p.param.requires_grad() ? "" : " frozen");
    }
  }
  return out;
}

StateTypes TypesOf(const at::Tensor& param, const ShardOptions& o) {
  const at::ScalarType own = param.scalar_type();
  StateTypes t{own, own, own, own};
  if (!at::isFloatingType(own) || !param.requires_grad()) {
    if (at::isFloatingType(own) && o.param_dtype)
      t = {*o.param_dtype, *o.param_dtype, *o.param_dtype, *o.param_dtype};
    return t;
  }
  t.param = o.param_dtype.value_or(own);
  t.grad = o.grad_dtype.value_or(t.param);
  t.reduce = o.reduce_dtype.value_or(t.grad);
  // Optimizers work in fp32 at least.
  t.master = own == at::kDouble ? at::kDouble : at::kFloat;
  return t;
}

}  // namespace

ShardedModel::ShardedModel(LiveMesh mesh, ShardOptions options)
    : mesh_(std::move(mesh)), options_(options) {
  verification_ = std::make_unique<Verification>(*this);
}

ShardedModel::~ShardedModel() {
  mesh_.world().context().Remove(executor_);
  Drain();
  try {
    FinishUpdates();                 // who still holds a parameter may read it
  } catch (const std::exception&) {  // has been raised, or concerns nobody any more
  }
}

std::shared_ptr<ShardedModel> ShardedModel::Create(LiveMesh mesh, std::vector<UnitSpec> units,
                                                   ShardOptions options) {
  std::string problem;
  if (units.empty()) problem = "a sharded model needs at least the root unit";
  if (options.prefetch < 0)
    problem = absl::StrCat("prefetch=", options.prefetch, " must be at least 0");
  if (options.gradient_buckets < 1)
    problem = absl::StrCat("gradient_buckets=", options.gradient_buckets, " must be at least 1");
  if (options.bucket_bytes < 1)
    problem = absl::StrCat("bucket_bytes=", options.bucket_bytes, " must be at least 1");
  if (options.offload_chunk_bytes < 1)
    problem =
        absl::StrCat("offload_chunk_bytes=", options.offload_chunk_bytes, " must be at least 1");
  for (const UnitSpec& u : units) {
    const Space space = options.family == Family::kPaper ? Space::kNested : Space::kFull;
    if (absl::Status s = ValidatePolicy(u.policy, mesh, space); !s.ok() && problem.empty()) {
      problem = absl::StrCat("unit '", u.name, "': ", s.message());
    }
  }
  // A rank that finds a mistake must not leave the others waiting: all compare what they were given
  // first.
  mesh.world().CheckAgreement("the model and its plan",
                              problem.empty() ? Describe(units, options) : problem);
  if (!problem.empty()) throw Error(problem);
  std::shared_ptr<ShardedModel> model(new ShardedModel(std::move(mesh), options));
  model->BuildUnits(std::move(units));
  model->Register();
  return model;
}

void ShardedModel::Register() {
  RankContext::Executor executor;
  executor.wait = [gather = std::weak_ptr(gather_stream_), reduce = std::weak_ptr(reduce_lanes_),
                   update = std::weak_ptr(update_lanes_), other = std::weak_ptr(other_stream_)] {
    if (const auto s = gather.lock()) s->Drain();
    if (const auto s = reduce.lock()) s->Drain();
    if (const auto s = update.lock()) s->Drain();
    if (const auto s = other.lock()) s->Drain();
  };
  executor.compare = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->verification_->Compare("the end", /*final=*/true);
  };
  executor_ = mesh_.world().context().AddExecutor(std::move(executor));
}

void ShardedModel::BuildUnits(std::vector<UnitSpec> specs) {
  for (size_t u = 0; u < specs.size(); ++u) {
    units_.push_back(std::make_unique<Unit>());
    Unit& unit = *units_.back();
    unit.name = specs[u].name;
    if (specs[u].materialize) {
      for (NamedParam& p : specs[u].params) p.param.reset();  // so that it may be replaced
      const std::vector<at::Tensor> real = specs[u].materialize();
      LINS_CHECK(real.size() == specs[u].params.size(), real.size(), " tensors for unit ",
                 unit.name);
      for (size_t i = 0; i < real.size(); ++i) specs[u].params[i].param = real[i];
    }
    if (!pool_ && !specs[u].params.empty())
      pool_ = std::make_shared<BufferPool>(specs[u].params[0].param.device());
    // Equal dtype and trainability share a buffer, in order of first appearance.
    std::vector<std::vector<NamedParam>> classes;
    for (NamedParam& p : specs[u].params) {
      auto it = std::find_if(classes.begin(), classes.end(), [&](const auto& c) {
        return c[0].param.scalar_type() == p.param.scalar_type() &&
               c[0].param.requires_grad() == p.param.requires_grad();
      });
      if (it == classes.end()) it = classes.insert(it, std::vector<NamedParam>());
      it->push_back(std::move(p));
    }
    for (auto& params : classes) {
      const FlatBuffer::Options options{TypesOf(params[0].param, options_),
                                        options_.family,
                                        options_.bucket_bytes,
                                        options_.check_init,
                                        options_.cost_model.get(),
                                        options_.offload_optimizer};
      unit.buffers.push_back(std::make_unique<FlatBuffer>(unit.name.empty() ? "root" : unit.name,
                                                          std::move(params), specs[u].policy,
                                                          options, mesh_, pool_));
      if (unit.buffers.back()->trainable())
        WatchGradients(static_cast<int>(u), *unit.buffers.back());
    }
  }
  if (!pool_) pool_ = std::make_shared<BufferPool>(at::kCPU);
  const c10::Device queue = pool_->queue();
  gather_stream_ = std::make_shared<Stream>(options_.overlap, queue, "gather");
  reduce_lanes_ = std::make_shared<Lanes>(options_.overlap, queue, "reduce");
  update_lanes_ = std::make_shared<Lanes>(options_.overlap, queue, "update");
  other_stream_ = std::make_shared<Stream>(true, queue, "other");
  if (options_.cost_model) mesh_.world().CheckAgreement("the plan's collectives", Collectives());
  ConnectGroups();
  for (size_t u = units_.size(); u-- > 1;) reduce_order_.push_back(static_cast<int>(u));
  reduce_order_.push_back(0);
}

// The steps of all redistributions: ranks whose cost models differ would choose different ones.
std::string ShardedModel::Collectives() const {
  std::string out;
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) {
      const UnitPlan& p = b->plan();
      absl::StrAppend(&out, b->unit(), ":");
      for (const RedistributionPlan* r :
           {&p.gather, &p.regather, &p.scatter, &p.accumulate, &p.reduce, &p.update}) {
        for (const Step& s : r->steps) {
          absl::StrAppend(&out, " ", StepKindName(s.kind), "(", mesh_.AxesToString(s.axes), ")");
        }
        absl::StrAppend(&out, ";");
      }
      absl::StrAppend(&out, "\n");
    }
  }
  return out;
}

// Creates every communicator that a step needs, here and in one order: later, streams of different
// roles would wait for each other's partners.
void ShardedModel::ConnectGroups() {
  const auto connect = [this](const RedistributionPlan& plan, Role role) {
    for (const Step& s : plan.steps) {
      if (Mesh::GroupSize(s.axes) > 1 && s.kind != StepKind::kSlice && s.kind != StepKind::kLocal) {
        mesh_.Comm(s.axes, role);
      }
    }
  };
  WorldComm();
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) {
      connect(b->plan().gather, Role::kGather);
      connect(b->plan().regather, Role::kGather);
      if (!b->trainable()) continue;
      connect(b->plan().scatter, Role::kReduce);
      connect(b->plan().accumulate, Role::kReduce);
      connect(b->plan().reduce, Role::kReduce);
      connect(b->plan().update, Role::kUpdate);
    }
  }
}

void ShardedModel::WatchGradients(int unit, FlatBuffer& buffer) {
  for (size_t i = 0; i < buffer.params().size(); ++i) {
    grad_hooks_.push_back(OnAccumulatedGradient(
        buffer.params()[i],
        [this, unit, &buffer, i](at::Tensor& grad) { OnGradient(unit, buffer, i, grad); }));
  }
}

std::vector<FlatBuffer*> ShardedModel::TrainableBuffers() const {
  std::vector<FlatBuffer*> out;
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) {
      if (b->trainable()) out.push_back(b.get());
    }
  }
  return out;
}

void ShardedModel::Drain() {
  if (!other_stream_) return;  // the model was not completed
  gather_stream_->Drain();
  reduce_lanes_->Drain();
  update_lanes_->Drain();
  other_stream_->Drain();
}

int ShardedModel::UnitIndex(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u]->name == name) return static_cast<int>(u);
    names.push_back(absl::StrCat("'", units_[u]->name, "'"));
  }
  throw Error(absl::StrCat("no unit '", name, "': the model has ", absl::StrJoin(names, ", ")));
}

bool ShardedModel::Verifying() const { return mesh_.world().context().verifying(); }

Communicator& ShardedModel::WorldComm() const { return mesh_.world().Everyone(Role::kOther); }

}  // namespace lins
