#include "runtime/flat_buffer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "comm/order_checker.h"
#include "dtensor/execute.h"
#include "dtensor/staged.h"
#include "mesh/error.h"
#include "runtime/host_pass.h"
#include "runtime/paper_steps.h"

namespace lins {
namespace {

int64_t TotalNumel(const std::vector<NamedParam>& params) {
  int64_t n = 0;
  for (const NamedParam& p : params) n += p.param.numel();
  return n;
}

StateSizes Sizes(const StateTypes& t) {
  StateSizes s;
  s.param = c10::elementSize(t.param);
  s.grad = c10::elementSize(t.grad);
  s.master = t.master == t.param ? 0 : c10::elementSize(t.master);
  s.moments = 2 * c10::elementSize(t.master);
  return s;
}

// Parameters whose size keeps cache lines aligned come first; otherwise the order stays.
std::vector<NamedParam> AlignedFirst(std::vector<NamedParam> params) {
  std::stable_partition(params.begin(), params.end(),
                        [](const NamedParam& p) { return p.param.nbytes() % 64 == 0; });
  return params;
}

}  // namespace

Range Window::PartIn(const Range& held) const {
  const int64_t from = std::clamp(offset, held.first, held.second);
  return {from, std::clamp(offset + numel, from, held.second)};
}

FlatBuffer::FlatBuffer(std::string unit, std::vector<NamedParam> params, const Policy& policy,
                       const Options& options, const LiveMesh& mesh,
                       std::shared_ptr<BufferPool> pool)
    : unit_(std::move(unit)),
      trainable_(params.at(0).param.requires_grad()),
      offload_(options.offload),
      numel_(TotalNumel(params)),
      mesh_(mesh),
      pool_(std::move(pool)),
      plan_(ValueOrThrow(MakeUnitPlan(policy, numel_, mesh, Sizes(options.types),
                                      {options.cost_model, {}}, options.family,
                                      options.bucket_bytes))),
      types_(options.types) {
  const auto prepare = [&](const RedistributionPlan& plan, Role role) {
    return PreparedPlan::Create(plan, mesh_, role, unit_);
  };
  gather_ = prepare(plan_.gather, Role::kGather);
  regather_ = prepare(plan_.regather, Role::kGather);
  if (plan_.family == Family::kPaper) {  // whose sums and broadcasts are in paper_steps.h
    scatter_ = prepare(plan_.scatter, Role::kReduce);
  } else {
    accumulate_ = prepare(plan_.accumulate, Role::kReduce);
    reduce_ = prepare(plan_.reduce, Role::kReduce);
    update_ = prepare(plan_.update, Role::kUpdate);
  }
  c10::NoGradGuard no_grad;
  int64_t offset = 0;
  for (NamedParam& p : AlignedFirst(std::move(params))) {
    windows_.push_back({std::move(p.name), Shape(p.param.sizes().begin(), p.param.sizes().end()),
                        offset, p.param.numel()});
    params_.push_back(std::move(p.param));
    offset += windows_.back().numel;
  }
  arrived_.assign(windows_.size(), false);
  used_.assign(windows_.size(), false);
  const Range os = plan_.optim.RangesOf(mesh_.rank())[0];
  optim_begin_ = os.first;
  optim_numel_ = os.second - os.first;
  LoadInitial(options.check_init);
}

FlatBuffer::~FlatBuffer() = default;

void FlatBuffer::LoadInitial(bool check_init) {
  const int64_t total = plan_.total;
  const at::Device device = params_[0].device();
  const at::ScalarType given = params_[0].scalar_type();
  at::Tensor whole = at::zeros({total}, at::TensorOptions().dtype(given).device(device));
  for (size_t i = 0; i < windows_.size(); ++i) {
    whole.narrow(0, windows_[i].offset, windows_[i].numel)
        .view(params_[i].sizes())
        .copy_(params_[i]);
  }
  if (mesh_.size() > 1 && total > 0) {
    at::Tensor first = check_init ? whole.clone() : whole;
    mesh_.world().Everyone(Role::kOther).Broadcast(first, 0, {unit_, "", ""}).Wait();
    if (check_init) {
      std::string differs;
      for (size_t i = 0; i < windows_.size() && differs.empty(); ++i) {
        const Window& w = windows_[i];
        if (!at::equal(whole.narrow(0, w.offset, w.numel), first.narrow(0, w.offset, w.numel)))
          differs = w.name;
      }
      mesh_.world().CheckAgreement(absl::StrCat("the initial values of unit '", unit_, "'"),
                                   differs.empty()
                                       ? "equal to rank 0's"
                                       : absl::StrCat("parameter '", differs, "' unlike rank 0's"));
    }
  }
  const at::Tensor values = whole.to(types_.param);
  const Range p = plan_.param.RangesOf(mesh_.rank())[0];
  if (types_.master != types_.param && trainable_) {
    const at::Tensor mine = whole.narrow(0, optim_begin_, optim_numel_);
    const at::TensorOptions on = mine.options().dtype(types_.master);
    master_ = at::empty({optim_numel_}, offload_ ? InHostMemory(on) : on);
    master_->copy_(mine);
  }
  param_ = NeedsGather() ? values.narrow(0, p.first, p.second - p.first).clone() : values;
  const size_t nbytes = total * values.element_size();
  auto storage =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                            at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                            /*resizable=*/false);
  full_ = at::empty({0}, values.options()).set_(c10::Storage(std::move(storage)), 0, {total}, {1});
  for (size_t i = 0; i < windows_.size(); ++i) {
    const bool requires_grad = params_[i].requires_grad();
    at::Tensor view = at::empty({0}, full_.options());
    view.set_(full_.storage(), windows_[i].offset, params_[i].sizes(),
              c10::contiguous_strides(params_[i].sizes()));
    params_[i].set_data(view);
    params_[i].set_requires_grad(requires_grad);
  }
  if (NeedsGather()) {
    ReleaseMemory();
  } else {
    Show();
  }
}

void FlatBuffer::Show() {
  c10::StorageImpl* storage = full_.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  if (lease_) {
    storage->set_data_ptr_noswap(at::DataPtr(lease_->data(), full_.device()));
  } else if (plan_.total > 0) {  // what reads them keeps the memory
    storage->set_data_ptr_noswap(at::DataPtr(
        param_.mutable_data_ptr(), new at::Tensor(param_),
        [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, full_.device()));
  }
}

void FlatBuffer::Hide(const std::string& why) {
  c10::StorageImpl* storage = full_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, full_.device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      absl::StrCat("lins: the parameters of unit '", unit_, "' ", why));
}

void FlatBuffer::TakeMemory() {
  LINS_CHECK(NeedsGather() && !lease_, "memory of unit ", unit_, " is taken twice");
  lease_ = Borrow(plan_.total * full_.element_size(), "gather");
  Show();
}

std::shared_ptr<BufferPool::Lease> FlatBuffer::Borrow(int64_t nbytes, const char* what) const {
  try {
    return pool_->Acquire(nbytes);
  } catch (const std::exception& e) {
    const BufferPool::Stats s = pool_->stats();
    throw Error(absl::StrCat("no memory for ", nbytes, " bytes to ", what, " unit '", unit_,
                             "' (parameters ", windows_.front().name, " to ", windows_.back().name,
                             ") on rank ", mesh_.rank(), ": ", s.live_bytes, " bytes are lent for ",
                             s.live_leases, " other buffers; ", e.what()),
                Error::Kind::kRuntime);
  }
}

void FlatBuffer::KeepBetween() {
  if (plan_.policy.between.empty() || StaysWhole() || between_lease_ || !HasMemory()) return;
  const Range r = plan_.between.RangesOf(mesh_.rank())[0];
  between_lease_ = pool_->Acquire((r.second - r.first) * full_.element_size());
  between_lease_->Begin();
  const at::Tensor kept = between_lease_->As(full_.scalar_type(), r.second - r.first);
  NoteRead(full_, "keep between", unit_);
  NoteWrite(kept, "keep between", unit_);
  kept.copy_(full_.narrow(0, r.first, r.second - r.first));
  kept_between_ = Event::Here(pool_->queue());
}

void FlatBuffer::Gather() const {
  updated_.Wait();
  lease_->Begin();
  if (between_lease_) {
    kept_between_.Wait();
    const at::Tensor piece =
        between_lease_->As(full_.scalar_type(), plan_.between.LocalNumel(mesh_.rank()));
    Execute(*regather_, piece, full_);
    return;
  }
  Execute(*gather_, param_, full_);
}

void FlatBuffer::ReleaseMemory() {
  Hide(absl::StrCat(
      "are cut over ", Product(plan_.policy.param),
      " ranks and not gathered now. They are complete while the unit computes; to "
      "read or write them elsewhere use `with lins.unsharded(module):`, to compute with "
      "them in a method other than forward `lins.register_forward_method(module, "
      "name)`, to see this rank's part `lins.states(model)`"));
  lease_.reset();
}

void FlatBuffer::WriteBack() {
  c10::NoGradGuard no_grad;
  const Range p = plan_.param.RangesOf(mesh_.rank())[0];
  NoteRead(full_, "write back", unit_);
  NoteWrite(param_, "write back", unit_);
  if (NeedsGather()) param_.copy_(full_.narrow(0, p.first, p.second - p.first));
  if (master_) master_->copy_(full_.narrow(0, optim_begin_, optim_numel_));
}

void FlatBuffer::BeginStep() {
  DropContribution();
  // What a failed backward left where torch accumulates would be added to the next gradient.
  for (at::Tensor& p : params_) {
    if (p.grad().defined()) p.mutable_grad().reset();
  }
  std::fill(used_.begin(), used_.end(), false);
  accumulating_ = false;
}

void FlatBuffer::DropContribution() {
  std::fill(arrived_.begin(), arrived_.end(), false);
  bucket_ = at::Tensor();
  bucket_lease_.reset();
}

at::Tensor FlatBuffer::Target(size_t i) {
  const bool cut = Product(plan_.policy.grad) > 1;
  if (!grad_.defined()) {
    grad_ =
        at::empty({plan_.total / Product(plan_.policy.grad)}, full_.options().dtype(types_.grad));
  }
  if (cut && !bucket_.defined()) {
    bucket_lease_ =
        Borrow(plan_.total * c10::elementSize(types_.reduce), "collect the gradients of");
    bucket_lease_->Begin();
    bucket_ = bucket_lease_->As(types_.reduce, plan_.total);
  }
  return (cut ? bucket_ : grad_)
      .narrow(0, windows_[i].offset, windows_[i].numel)
      .view(params_[i].sizes());
}

void FlatBuffer::AddGradient(size_t i, const at::Tensor& grad) {
  c10::NoGradGuard no_grad;
  const at::Tensor target = Target(i);
  // Where G is not cut, the gradient adds straight to the accumulated one.
  const bool cut = bucket_.defined();
  if (!grad.is_sparse()) NoteRead(grad, "add gradient", unit_);
  NoteWrite(target, "add gradient", unit_);
  const bool holds = cut ? arrived_[i] : (arrived_[i] || (accumulating_ && used_[i]));
  if (grad.is_sparse()) {
    if (!holds) target.zero_();
    target.add_(grad);
  } else if (holds) {
    target.add_(grad);
  } else {
    target.copy_(grad);
  }
  arrived_[i] = used_[i] = true;
}

at::Tensor FlatBuffer::Part(const at::Tensor& slot, const Layout& held,
                            const Layout& wanted) const {
  const Range have = held.RangesOf(mesh_.rank())[0], want = wanted.RangesOf(mesh_.rank())[0];
  return slot.narrow(0, want.first - have.first, want.second - want.first);
}

at::Tensor FlatBuffer::OptimParam() const {
  if (master_) return *master_;
  return Part(param_, plan_.param, plan_.optim);
}

at::Tensor FlatBuffer::OptimGrad() const {
  if (!grad_.defined()) return {};
  return Part(grad_, plan_.grad, plan_.optim);
}

bool FlatBuffer::CountsOptim() const {
  return mesh_.IndexInGroup(Complement(mesh_, plan_.optim.SplitAxes()), mesh_.rank()) == 0;
}

at::Tensor FlatBuffer::OptimCopy() const {
  if (!master_) return {};
  return Part(param_, plan_.param, plan_.optim);
}

void FlatBuffer::NoteCompute() const {
  if (HasMemory() && !updating_) NoteRead(full_, "compute", unit_);
}

void FlatBuffer::NoteOptimizer() const {
  NoteRead(OptimGrad(), "optimizer", unit_);
  // Masters in host memory are on their way back to it.
  if (!(offload_ && master_)) NoteWrite(OptimParam(), "optimizer", unit_);
  NoteWrite(OptimCopy(), "optimizer", unit_);
}

void FlatBuffer::StartUpdate(Lanes& lanes) {
  const bool copies = master_ && !copied_;
  copied_ = false;
  if (!trainable_ || (!copies && plan_.update.steps.empty())) return;
  if (!NeedsGather()) {
    Hide(
        "are being updated: this module's next forward waits for that, so does reading them "
        "through their module (module.weight) or `with lins.unsharded(module):`");
  }
  std::vector<Stage> stages;
  const at::Tensor slice = Part(param_, plan_.param, plan_.optim);
  if (copies) {
    stages.push_back({{}, [this, slice, master = *master_] {
                        NoteRead(master, "copy master", unit_);
                        NoteWrite(slice, "copy master", unit_);
                        slice.copy_(master);
                      }});
  }
  if (plan_.family == Family::kPaper && !plan_.update.steps.empty()) {
    stages.push_back({mesh_.Group(plan_.update.steps[0].axes, mesh_.rank()),
                      [this] { BroadcastSlots(plan_.update, param_, mesh_, unit_); }});
  } else if (plan_.family == Family::kPlanned) {
    AddStages(
        update_,
        [this, slice] {
          return StagedTensors{slice, param_};
        },
        stages);
  }
  updating_ = true;
  updated_ = lanes.Run(std::move(stages)).back();
}

void FlatBuffer::FinishUpdate() {
  if (!updating_) return;
  updating_ = false;
  try {
    updated_.Wait();
  } catch (...) {
    if (!NeedsGather()) Show();
    throw;
  }
  if (!NeedsGather()) Show();
}

}  // namespace lins
