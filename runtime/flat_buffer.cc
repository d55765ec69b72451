#include "runtime/flat_buffer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "dtensor/execute.h"
#include "mesh/error.h"

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

// The elements of windows that were not written, padding included, as runs.
template <typename Fn>
void ForEachUnwritten(const std::vector<Window>& windows, const std::vector<bool>& written,
                      int64_t total, Fn fn) {
  for (size_t i = 0; i < windows.size(); ++i) {
    if (!written[i]) fn(windows[i].offset, windows[i].numel);
  }
  const int64_t end = windows.empty() ? 0 : windows.back().offset + windows.back().numel;
  if (end < total) fn(end, total - end);
}

}  // namespace

FlatBuffer::FlatBuffer(std::string unit, std::vector<NamedParam> params, const Policy& policy,
                       const StateTypes& types, bool check_init, const LiveMesh& mesh,
                       std::shared_ptr<BufferPool> pool, const CostModel* cost_model)
    : unit_(std::move(unit)),
      trainable_(params.at(0).param.requires_grad()),
      numel_(TotalNumel(params)),
      mesh_(mesh),
      pool_(std::move(pool)),
      plan_(ValueOrThrow(MakeUnitPlan(policy, numel_, mesh, Sizes(types), {cost_model, {}}))),
      gather_(PreparedPlan::Create(plan_.gather, mesh, Role::kGather, unit_)),
      regather_(PreparedPlan::Create(plan_.regather, mesh, Role::kGather, unit_)),
      accumulate_(PreparedPlan::Create(plan_.accumulate, mesh, Role::kReduce, unit_)),
      reduce_(PreparedPlan::Create(plan_.reduce, mesh, Role::kReduce, unit_)),
      update_(PreparedPlan::Create(plan_.update, mesh, Role::kUpdate, unit_)),
      types_(types) {
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
  LoadInitial(check_init);
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
    master_ = whole.narrow(0, optim_begin_, optim_numel_).to(types_.master).clone();
  }
  const size_t nbytes = total * values.element_size();
  if (!NeedsGather()) {
    full_ = values;
    param_ = full_;
  } else {
    param_ = values.narrow(0, p.first, p.second - p.first).clone();
    auto storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                              at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                                              /*resizable=*/false);
    full_ =
        at::empty({0}, values.options()).set_(c10::Storage(std::move(storage)), 0, {total}, {1});
  }
  for (size_t i = 0; i < windows_.size(); ++i) {
    const bool requires_grad = params_[i].requires_grad();
    at::Tensor view = at::empty({0}, full_.options());
    view.set_(full_.storage(), windows_[i].offset, params_[i].sizes(),
              c10::contiguous_strides(params_[i].sizes()));
    params_[i].set_data(view);
    params_[i].set_requires_grad(requires_grad);
  }
  if (NeedsGather()) ReleaseMemory();
}

void FlatBuffer::TakeMemory() {
  LINS_CHECK(NeedsGather() && !lease_, "memory of unit ", unit_, " is taken twice");
  lease_ = pool_->Acquire(plan_.total * full_.element_size());
  c10::StorageImpl* storage = full_.storage().unsafeGetStorageImpl();
  storage->clear_data_ptr_access_error_msg_();
  storage->set_data_ptr_noswap(at::DataPtr(lease_->data(), full_.device()));
}

void FlatBuffer::KeepBetween() {
  if (plan_.policy.between.empty() || StaysWhole() || between_lease_ || !HasMemory()) return;
  const Range r = plan_.between.RangesOf(mesh_.rank())[0];
  between_lease_ = pool_->Acquire((r.second - r.first) * full_.element_size());
  between_lease_->As(full_.scalar_type(), r.second - r.first)
      .copy_(full_.narrow(0, r.first, r.second - r.first));
}

void FlatBuffer::Gather() const {
  if (between_lease_) {
    const at::Tensor piece =
        between_lease_->As(full_.scalar_type(), plan_.between.LocalNumel(mesh_.rank()));
    Execute(*regather_, piece, full_);
    return;
  }
  Execute(*gather_, param_, full_);
}

void FlatBuffer::ReleaseMemory() {
  c10::StorageImpl* storage = full_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, full_.device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(absl::StrCat(
      "lins: the parameters of unit '", unit_, "' are cut over ", Product(plan_.policy.param),
      " ranks and not gathered now. They are complete while the unit computes; to read or write "
      "them elsewhere "
      "use `with lins.unsharded(module):`, to see this rank's part `lins.states(model)`"));
  lease_.reset();
}

void FlatBuffer::WriteBack() {
  c10::NoGradGuard no_grad;
  const Range p = plan_.param.RangesOf(mesh_.rank())[0];
  if (NeedsGather()) param_.copy_(full_.narrow(0, p.first, p.second - p.first));
  if (master_) master_->copy_(full_.narrow(0, optim_begin_, optim_numel_));
}

void FlatBuffer::BeginStep() {
  DropContribution();
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
    bucket_lease_ = pool_->Acquire(plan_.total * c10::elementSize(types_.reduce));
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

std::function<void()> FlatBuffer::FinishMicroBatch(bool last, double divisor) {
  if (windows_.empty()) return [] {};
  Target(0);  // a rank without gradients contributes zeros
  struct Task {
    std::shared_ptr<BufferPool::Lease> lease;
    at::Tensor bucket;
    std::vector<bool> written;
    bool accumulating;
  };
  auto task = std::make_shared<Task>();
  const bool cut = bucket_.defined();
  // G without cuts keeps what earlier micro-batches wrote.
  task->written = cut ? arrived_ : used_;
  task->lease = std::move(bucket_lease_);
  task->bucket = std::move(bucket_);
  task->accumulating = accumulating_;
  bucket_lease_.reset();
  bucket_ = at::Tensor();
  std::fill(arrived_.begin(), arrived_.end(), false);
  accumulating_ = true;
  return [this, task, last, divisor, cut] {
    const auto zero = [&](const at::Tensor& t) {
      ForEachUnwritten(windows_, task->written, plan_.total,
                       [&](int64_t at, int64_t n) { t.narrow(0, at, n).zero_(); });
    };
    if (cut) {
      zero(task->bucket);
      // Straight into G where it is empty and of the dtype that is sent.
      const bool direct = !task->accumulating && types_.grad == types_.reduce;
      std::shared_ptr<BufferPool::Lease> staging;
      at::Tensor piece = grad_;
      if (!direct) {
        staging = pool_->Acquire(grad_.numel() * c10::elementSize(types_.reduce));
        piece = staging->As(types_.reduce, grad_.numel());
      }
      Execute(*accumulate_, task->bucket, piece);
      task->bucket = at::Tensor();
      task->lease.reset();
      if (task->accumulating) {
        grad_.add_(piece);
      } else if (!direct) {
        grad_.copy_(piece);
      }
    } else if (last) {
      zero(grad_);
    }
    if (!last) return;
    const at::Tensor mine = OptimGrad();
    if (types_.grad == types_.reduce || plan_.reduce.steps.empty()) {
      Execute(*reduce_, grad_, mine);
    } else {
      const at::Tensor sent = grad_.to(types_.reduce);
      mine.copy_(Execute(*reduce_, sent));
    }
    if (divisor != 1) mine.div_(divisor);
  };
}

at::Tensor FlatBuffer::OptimSlice(const at::Tensor& slot, const Layout& layout) const {
  const int64_t begin = layout.RangesOf(mesh_.rank())[0].first;
  return slot.narrow(0, optim_numel_ ? optim_begin_ - begin : 0, optim_numel_);
}

at::Tensor FlatBuffer::OptimParam() const {
  if (master_) return *master_;
  return OptimSlice(param_, plan_.param);
}

at::Tensor FlatBuffer::OptimGrad() const {
  if (!grad_.defined()) return {};
  return OptimSlice(grad_, plan_.grad);
}

Range FlatBuffer::OptimPart(size_t window) const {
  const Window& w = windows_[window];
  const int64_t end = optim_begin_ + optim_numel_;
  const int64_t from = std::clamp(w.offset, optim_begin_, end);
  return {from, std::clamp(w.offset + w.numel, from, end)};
}

at::Tensor FlatBuffer::OptimCopy() const {
  if (!master_) return {};
  return OptimSlice(param_, plan_.param);
}

void FlatBuffer::Update() const {
  c10::NoGradGuard no_grad;
  const at::Tensor slice = OptimSlice(param_, plan_.param);
  if (master_ && !copied_) slice.copy_(*master_);
  copied_ = false;
  Execute(*update_, slice, param_);
}

}  // namespace lins
