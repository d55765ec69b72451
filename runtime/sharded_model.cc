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
    : mesh_(std::move(mesh)),
      options_(options),
      gather_stream_(std::make_shared<Stream>(options.overlap)),
      reduce_lanes_(std::make_shared<Lanes>(options.overlap)),
      update_lanes_(std::make_shared<Lanes>(options.overlap)),
      other_stream_(std::make_shared<Stream>(true)) {
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
      const FlatBuffer::Options options{TypesOf(params[0].param, options_), options_.family,
                                        options_.bucket_bytes, options_.check_init,
                                        options_.cost_model.get()};
      unit.buffers.push_back(std::make_unique<FlatBuffer>(unit.name.empty() ? "root" : unit.name,
                                                          std::move(params), specs[u].policy,
                                                          options, mesh_, pool_));
      if (unit.buffers.back()->trainable())
        WatchGradients(static_cast<int>(u), *unit.buffers.back());
    }
  }
  if (!pool_) pool_ = std::make_shared<BufferPool>(at::kCPU);
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

// --- Gathering

void ShardedModel::LaunchGather(Unit& unit) {
  std::vector<FlatBuffer*> todo;
  for (const auto& b : unit.buffers) {
    if (!b->NeedsGather() || b->HasMemory()) continue;
    b->TakeMemory();
    todo.push_back(b.get());
  }
  if (todo.empty()) return;
  unit.gathered = gather_stream_->Run([todo] {
    for (FlatBuffer* b : todo) b->Gather();
  });
}

void ShardedModel::EnsureGathered(Unit& unit) {
  LaunchGather(unit);
  unit.gathered.Wait();
}

void ShardedModel::Prefetch(int from, int direction) {
  if (!options_.overlap || from == 0) return;
  for (int i = 1; i <= options_.prefetch; ++i) {
    const int u = from + i * direction;
    if (u < 1 || u >= static_cast<int>(units_.size())) return;
    LaunchGather(*units_[u]);
  }
}

void ShardedModel::ReleaseIfIdle(Unit& unit) {
  if (unit.depth > 0 || unit.pins > 0 || unit.in_backward) return;
  unit.gathered.Wait();
  for (const auto& b : unit.buffers) {
    if (unit.uses == 0) b->DropBetween();
    if (!b->NeedsGather() || !b->HasMemory()) continue;
    if (unit.uses > 0) {
      if (b->StaysWhole()) continue;
      b->KeepBetween();
    }
    b->ReleaseMemory();
  }
}

// --- Forward

void ShardedModel::PreForward(int u) {
  if (in_backward_ && !InsideBackward()) RecoverFromFailure();
  Unit& unit = *units_[u];
  ++unit.depth;
  EnsureGathered(unit);
  FinishUpdates(u);
  if (Verifying()) verification_->NoteParameters(u, in_backward_);
  // A forward inside a backward recomputes activations: there the next unit is the one before.
  Prefetch(u, in_backward_ ? -1 : 1);
}

void ShardedModel::PostForward(int u) {
  Unit& unit = *units_[u];
  unit.depth = std::max(0, unit.depth - 1);  // also called where a forward failed before it began
  ReleaseIfIdle(unit);
  if (u == 0 && unit.depth == 0 && !in_backward_) {
    for (const auto& other : units_) ReleaseIfIdle(*other);  // gathered ahead but not used
  }
}

std::vector<at::Tensor> ShardedModel::EnterUnit(int u, const std::vector<at::Tensor>& inputs) {
  std::weak_ptr<ShardedModel> weak = weak_from_this();
  return OnInputGradients(inputs, [weak, u] {
    if (auto self = weak.lock()) self->PostBackward(u);
  });
}

void ShardedModel::LeaveUnit(int u, const std::vector<at::Tensor>& outputs) {
  if (!c10::GradMode::is_enabled()) return;
  const bool differentiable = std::any_of(outputs.begin(), outputs.end(), [](const at::Tensor& t) {
    return t.defined() && t.requires_grad();
  });
  if (!differentiable) return;
  Unit& unit = *units_[u];
  if (in_backward_) {
    // Recomputation. A recorded forward has marked its outputs before. A reentrant checkpoint has
    // not recorded it: its own backward follows at once, and how many more will come is not known.
    if (unit.uses == 0) unit.in_backward = unit.unrecorded = true;
    return;
  }
  ++unit.uses;
  std::weak_ptr<ShardedModel> weak = weak_from_this();
  OnOutputGradient(outputs, [weak, u] {
    if (auto self = weak.lock()) self->PreBackward(u);
  });
}

at::Tensor ShardedModel::Call(int u, std::vector<at::Tensor> inputs,
                              const std::function<at::Tensor(const std::vector<at::Tensor>&)>& fn) {
  PreForward(u);
  at::Tensor out;
  try {
    out = fn(EnterUnit(u, inputs));
    LeaveUnit(u, {out});
  } catch (...) {
    PostForward(u);
    throw;
  }
  PostForward(u);
  return out;
}

// --- Backward

void ShardedModel::OnBackwardStart() {
  if (in_backward_) return;
  in_backward_ = true;
  std::weak_ptr<ShardedModel> weak = weak_from_this();
  OnBackwardEnd([weak] {
    if (auto self = weak.lock()) self->FinishBackward();
  });
  if (!explicit_micro_batch_) {
    index_ = 0;
    count_ = 1;
  }
  summary_.reset();
  if (index_ == 0) {
    grads_ready_ = false;
    grad_scale_ = 1;
    for (const auto& unit : units_) {
      for (const auto& b : unit->buffers) b->BeginStep();
    }
    LaunchCountCheck();
  }
  next_to_reduce_ = 0;
  for (const auto& unit : units_) unit->finished = unit->complete = unit->unrecorded = false;
}

void ShardedModel::PreBackward(int u) {
  OnBackwardStart();
  Unit& unit = *units_[u];
  unit.in_backward = true;
  EnsureGathered(unit);
  if (Verifying()) verification_->NoteParameters(u, /*backward=*/true);
  Prefetch(u, -1);
}

void ShardedModel::PostBackward(int u) {
  OnBackwardStart();
  Unit& unit = *units_[u];
  unit.uses = std::max(0, unit.uses - 1);
  unit.in_backward = false;
  ReleaseIfIdle(unit);
  if (unit.uses > 0 || unit.unrecorded) return;
  unit.complete = true;
  LaunchReductions();
}

void ShardedModel::OnGradient(int u, FlatBuffer& buffer, size_t param, at::Tensor& grad) {
  OnBackwardStart();
  if (units_[u]->finished) {
    throw Error(
        absl::StrCat(
            "the gradient of '", buffer.windows()[param].name, "' in unit '", buffer.unit(),
            "' arrived after the unit's gradients were reduced: the parameter is used outside its ",
            "unit's forward"),
        Error::Kind::kRuntime);
  }
  if (u != 0 && buffer.StartsContribution()) {
    // The memory of the next contribution is that of one which has been reduced.
    const size_t limit = options_.gradient_buckets;
    if (freed_.size() >= limit) freed_[freed_.size() - limit].Wait();
  }
  buffer.AddGradient(param, grad);
  grad.reset();
}

void ShardedModel::LaunchReductions() {
  const bool last = index_ + 1 == count_;
  const double divisor = divisor_.value_or(static_cast<double>(mesh_.size() * count_));
  for (; next_to_reduce_ < reduce_order_.size(); ++next_to_reduce_) {
    Unit& unit = *units_[reduce_order_[next_to_reduce_]];
    if (!unit.complete) return;
    if (counts_pending_) {
      counts_pending_ = false;
      counts_checked_.Wait();
    }
    unit.finished = true;
    Event freed;
    for (const auto& b : unit.buffers) {
      if (!b->trainable()) continue;
      FlatBuffer::Reduction r = b->FinishMicroBatch(last, divisor);
      if (r.stages.empty()) continue;
      const std::vector<Event> done = reduce_lanes_->Run(std::move(r.stages));
      if (r.freed) freed = done[*r.freed];
      reductions_.push_back(done.back());
    }
    freed_.push_back(freed);
    if (!options_.overlap && !reductions_.empty()) reductions_.back().Wait();
  }
}

void ShardedModel::FinishBackward() {
  for (const auto& unit : units_) {
    unit->complete = true;
    unit->uses = 0;
    unit->in_backward = false;
  }
  LaunchReductions();
  for (const auto& unit : units_) ReleaseIfIdle(*unit);
  for (const Event& e : reductions_) e.Wait();
  reductions_.clear();
  freed_.clear();
  in_backward_ = false;
  expected_ = index_ + 1;
  if (index_ + 1 == count_) {
    grads_ready_ = true;
    expected_ = 0;
  }
  if (!Verifying()) return;
  if (grads_ready_) verification_->NoteGradients();
  verification_->Compare("the backward");
}

void ShardedModel::RecoverFromFailure() {
  Drain();
  FinishUpdates();
  gather_stream_->Reset();
  reduce_lanes_->Reset();
  update_lanes_->Reset();
  other_stream_->Reset();
  reductions_.clear();
  freed_.clear();
  counts_pending_ = false;
  in_backward_ = false;
  ZeroGrad();
  for (const auto& unit : units_) {
    unit->uses = unit->depth = 0;
    unit->in_backward = unit->finished = false;
    unit->gathered = Event();
    for (const auto& b : unit->buffers) {
      b->DropBetween();
      if (b->NeedsGather() && b->HasMemory() && unit->pins == 0) b->ReleaseMemory();
    }
  }
}

// --- Micro-batches

void ShardedModel::BeginMicroBatch(int64_t index, int64_t count, std::optional<double> divisor) {
  if (count < 1 || index < 0 || index >= count) {
    throw Error(absl::StrCat("micro-batch index ", index, " of ", count,
                             ": legal are 0 to count - 1, count >= 1"));
  }
  if (divisor && !(*divisor > 0))
    throw Error(absl::StrCat("divisor ", *divisor, " must be above 0"));
  if (index > 0 && (index != expected_ || count != count_)) {
    throw Error(absl::StrCat(
        "micro-batch ", index, " of ", count, " cannot follow: expected ",
        expected_ == 0 ? "index 0" : absl::StrCat("index ", expected_, " of ", count_)));
  }
  index_ = index;
  count_ = count;
  divisor_ = divisor;
  explicit_micro_batch_ = true;
}

void ShardedModel::EndMicroBatch() {
  explicit_micro_batch_ = false;
  if (index_ + 1 == count_) divisor_.reset();
}

void ShardedModel::LaunchCountCheck() {
  if (mesh_.size() == 1) return;
  counts_in_ = at::full({1}, count_, at::TensorOptions().dtype(at::kLong)).to(pool_->device());
  counts_out_ = at::empty({mesh_.size()}, counts_in_.options());
  counts_pending_ = true;
  counts_checked_ = other_stream_->Run([this] {
    WorldComm()
        .AllGather(counts_out_, counts_in_, {}, {"root", mesh_.AxesToString(mesh_.AllAxes()), ""})
        .Wait();
    const at::Tensor all = counts_out_.cpu();
    if (!all.eq(count_).all().item<bool>()) {
      throw Error(
          absl::StrCat("ranks disagree about the number of micro-batches of this step: by rank ",
                       absl::StrJoin(all.const_data_ptr<int64_t>(),
                                     all.const_data_ptr<int64_t>() + all.numel(), ", ")));
    }
  });
}

void ShardedModel::CheckComplete() const {
  if (grads_ready_ || expected_ == 0) return;
  throw Error(absl::StrCat("the optimizer steps after micro-batch ", expected_ - 1, " of ", count_,
                           ": ", count_ - expected_,
                           " more must come first, with lins.micro_batch(model, index=", expected_,
                           ", count=", count_, ")"),
              Error::Kind::kRuntime);
}

void ShardedModel::ZeroGrad() {
  grads_ready_ = false;
  grad_scale_ = 1;
  summary_.reset();
  expected_ = 0;
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) b->BeginStep();
  }
}

// --- Reading

void ShardedModel::Unshard(const std::vector<int>& list) {
  for (int u : list) {
    ++units_[u]->pins;
    EnsureGathered(*units_[u]);
    FinishUpdates(u);
  }
}

void ShardedModel::Reshard(const std::vector<int>& list, bool writeback) {
  for (int u : list) {
    Unit& unit = *units_[u];
    if (writeback) {
      for (const auto& b : unit.buffers) {
        b->WriteBack();
        b->DropBetween();
      }
    }
    --unit.pins;
    ReleaseIfIdle(unit);
  }
}

// --- Updating

void ShardedModel::BeginUpdate() {
  for (const auto& unit : units_) {
    // What was gathered for a backward that did not come is out of date from here on.
    unit->uses = 0;
    ReleaseIfIdle(*unit);
    for (const auto& b : unit->buffers) b->DropBetween();
  }
  FinishUpdates();
}

void ShardedModel::LaunchUpdate(FlatBuffer& buffer) {
  buffer.StartUpdate(*update_lanes_);
  if (!options_.overlap_update || !options_.overlap) buffer.FinishUpdate();
}

void ShardedModel::EndUpdate() {
  ++steps_;
  if (!Verifying()) return;
  FinishUpdates();
  verification_->NoteStates();
  verification_->Compare("the update");
}

void ShardedModel::FinishUpdates(int unit) {
  for (const auto& b : units_[unit]->buffers) b->FinishUpdate();
}

void ShardedModel::FinishUpdates() {
  for (const auto& unit : units_) {
    for (const auto& b : unit->buffers) b->FinishUpdate();
  }
}

bool ShardedModel::Verifying() const { return mesh_.world().context().verifying(); }

bool ShardedModel::Updating() const {
  return std::any_of(units_.begin(), units_.end(), [](const auto& unit) {
    return std::any_of(unit->buffers.begin(), unit->buffers.end(),
                       [](const auto& b) { return b->updating(); });
  });
}

Communicator& ShardedModel::WorldComm() const { return mesh_.world().Everyone(Role::kOther); }

}  // namespace lins
