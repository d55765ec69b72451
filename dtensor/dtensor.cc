#include "dtensor/dtensor.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/execute.h"
#include "dtensor/gradient.h"
#include "dtensor/plan_cache.h"
#include "mesh/error.h"

namespace lins {
namespace {

Shape ToShape(at::IntArrayRef sizes) { return Shape(sizes.begin(), sizes.end()); }

// Every rank's local shape, by a gather over the whole mesh.
std::vector<Shape> GatherShapes(const at::Tensor& local, const LiveMesh& mesh) {
  World& world = mesh.world();
  world.CheckAgreement("the number of dimensions of local tensors", absl::StrCat(local.dim()));
  world.CheckAgreement("the dtype of local tensors",
                       std::string(c10::toString(local.scalar_type())));
  const int64_t n = local.dim();
  const at::Tensor mine = at::tensor(local.sizes(), at::kLong).to(local.device());
  at::Tensor out = at::empty({world.size(), n}, mine.options());
  world.Everyone(Role::kOther).AllGather(out, mine).Wait();
  out = out.cpu();
  std::vector<Shape> shapes;
  for (int64_t r = 0; r < world.size(); ++r) {
    const int64_t* row = out.const_data_ptr<int64_t>() + r * n;
    shapes.emplace_back(row, row + n);
  }
  return shapes;
}

// The global shape under which every rank's local shape is what the layout gives it.
Layout InferLayout(const at::Tensor& local, const LiveMesh& mesh, absl::string_view notation) {
  const std::vector<Shape> shapes = GatherShapes(local, mesh);
  // Sizes do not matter to the splits themselves: read them off a shape that any notation accepts.
  const Layout probe = ValueOrThrow(Layout::Parse(notation, shapes[0], mesh));
  if (probe.IsFlatOrOwned()) {
    throw Error(absl::StrCat("the shape cannot be worked out for ", probe.ToString(), ": give it"));
  }
  Shape global = shapes[0];
  for (const ShardTerm& t : probe.terms().shards) {
    global[t.dim] = 0;
    for (int64_t member : mesh.Group(t.axes, 0)) global[t.dim] += shapes[member][t.dim];
  }
  Layout layout = ValueOrThrow(Layout::Parse(notation, global, mesh));
  for (int64_t r = 0; r < mesh.size(); ++r) {
    if (shapes[r] != layout.LocalShape(r)) {
      const auto list = absl::StrJoin(shapes, ", ", [](std::string* o, const Shape& s) {
        absl::StrAppend(o, ShapeToString(s));
      });
      throw Error(absl::StrCat("local shapes ", list, " fit no tensor under ", layout.ToString(),
                               ": for a global shape ", ShapeToString(global), " rank ", r,
                               " would hold ", ShapeToString(layout.LocalShape(r)),
                               ". Give the shape, or pass what fits it"));
    }
  }
  return layout;
}

}  // namespace

DTensor DTensor::Distribute(const at::Tensor& full, const LiveMesh& mesh,
                            absl::string_view notation, std::optional<int64_t> src_rank) {
  return Distribute(full, mesh, ValueOrThrow(Layout::Parse(notation, ToShape(full.sizes()), mesh)),
                    src_rank);
}

DTensor DTensor::Distribute(const at::Tensor& full, const LiveMesh& mesh, const Layout& layout,
                            std::optional<int64_t> src_rank) {
  c10::NoGradGuard no_grad;
  const Layout whole = Layout::Replicated(ToShape(full.sizes()), mesh);
  const auto plan = mesh.cache().Get(whole, layout, full.element_size(), mesh);
  at::Tensor value = full.detach().contiguous();
  if (src_rank) {
    if (*src_rank < 0 || *src_rank >= mesh.size()) {
      throw Error(absl::StrCat("src_rank ", *src_rank, " is outside ", mesh.ToString()));
    }
    mesh.world().CheckAgreement(
        "the tensor to distribute",
        absl::StrCat(Describe(layout), ", ", c10::toString(full.scalar_type()), " of rank ",
                     *src_rank));
    value = value.clone();
    mesh.world().Everyone(Role::kOther).Broadcast(value, *src_rank).Wait();
  }
  at::Tensor local = Execute(*plan, value);
  // The caller's tensor stays the caller's.
  if (local.is_alias_of(full)) local = local.clone();
  if (full.requires_grad()) local.set_requires_grad(true);  // a leaf of its own
  return DTensor(std::move(local), layout, mesh);
}

DTensor DTensor::FromLocal(const at::Tensor& local, const LiveMesh& mesh,
                           absl::string_view notation, std::optional<Shape> shape) {
  const Layout layout = shape ? ValueOrThrow(Layout::Parse(notation, *shape, mesh))
                              : InferLayout(local, mesh, notation);
  return FromLocal(local, mesh, layout);
}

DTensor DTensor::FromLocal(const at::Tensor& local, const LiveMesh& mesh, const Layout& layout) {
  const Shape want = layout.LocalShape(mesh.rank());
  if (ToShape(local.sizes()) != want) {
    throw Error(absl::StrCat("local shape ", ShapeToString(ToShape(local.sizes())), " on rank ",
                             mesh.rank(), " does not fit ", Describe(layout), ": it would be ",
                             ShapeToString(want)));
  }
  return DTensor(local.contiguous(), layout, mesh);
}

DTensor DTensor::Redistribute(absl::string_view notation) const {
  return Redistribute(ValueOrThrow(Layout::Parse(notation, shape(), mesh_)));
}

DTensor DTensor::Redistribute(const Layout& layout) const {
  if (layout == layout_) return *this;
  const auto plan = mesh_.cache().Get(layout_, layout, local_.element_size(), mesh_);
  if (RecordsGradient(local_)) {
    return DTensor(RedistributeRecorded(local_, layout_, layout, mesh_), layout, mesh_);
  }
  return DTensor(Execute(*plan, local_), layout, mesh_);
}

PendingDTensor DTensor::RedistributeAsync(absl::string_view notation) const {
  return RedistributeAsync(ValueOrThrow(Layout::Parse(notation, shape(), mesh_)));
}

struct PendingDTensor::State {
  DTensor source;
  Layout layout;
  Execution execution;
  std::mutex mutex;
  std::optional<DTensor>
      result;  // set by the first Wait, or at once where there is no need to wait
};

PendingDTensor DTensor::RedistributeAsync(const Layout& layout) const {
  auto state = std::make_shared<PendingDTensor::State>(*this, layout);
  if (layout == layout_) {
    state->result = *this;
  } else if (RecordsGradient(local_) && NeedsValues(layout_, layout)) {
    state->result = Redistribute(layout);
  } else {
    auto plan = mesh_.cache().Get(layout_, layout, local_.element_size(), mesh_);
    if (RecordsGradient(local_)) CheckHasGradient(layout_, layout);
    state->execution = ExecuteAsync(std::move(plan), local_.detach(), mesh_);
  }
  return PendingDTensor(std::move(state));
}

DTensor PendingDTensor::Wait() {
  std::lock_guard lock(state_->mutex);
  if (!state_->result) {
    const DTensor& source = state_->source;
    at::Tensor value = state_->execution.Wait();
    if (RecordsGradient(source.local_)) {
      value =
          RecordRedistributed(source.local_, value, source.layout_, state_->layout, source.mesh_);
    }
    state_->result = DTensor(std::move(value), state_->layout, source.mesh_);
  }
  return *state_->result;
}

bool PendingDTensor::Done() const {
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  return lock.owns_lock() && (state_->result || state_->execution.Done());
}

at::Tensor DTensor::ToLocal(const Layout& gradient) const {
  if (gradient.LocalShape(mesh_.rank()) != layout_.LocalShape(mesh_.rank())) {
    throw Error(absl::StrCat("the gradient of the local tensor of ", Describe(layout_),
                             " cannot have layout ", Describe(gradient),
                             ": the local shapes differ"));
  }
  ThrowIfError(CachedPlan(gradient, GradientLayout(layout_), local_.element_size()).status());
  return WithGradientLayout(local_, layout_, gradient, mesh_);
}

at::Tensor DTensor::FullTensor() const {
  return Redistribute(Layout::Replicated(shape(), mesh_)).ToLocal();
}

}  // namespace lins
