#include "dtensor/gradient.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/backward_error.h"
#include "dtensor/dtensor.h"
#include "dtensor/execute.h"
#include "dtensor/plan_cache.h"
#include "mesh/error.h"

namespace lins {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool IsExtremum(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kMax; }

// What a node needs on the way back: two layouts and the mesh.
struct Route : torch::CustomClassHolder {
  Route(Layout a, Layout b, LiveMesh m)
      : from(std::move(a)), to(std::move(b)), mesh(std::move(m)) {}
  Layout from, to;
  LiveMesh mesh;
  at::Tensor ready;  // the result, where it is there already
};
using RoutePtr = c10::intrusive_ptr<Route>;

void Keep(AutogradContext* ctx, const RoutePtr& route) {
  ctx->saved_data["route"] = c10::IValue::make_capsule(route);
  ctx->set_materialize_grads(false);
}

RoutePtr Kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Route>(ctx->saved_data["route"].toCapsule());
}

at::Tensor Run(const at::Tensor& local, const Layout& src, const Layout& dst,
               const LiveMesh& mesh) {
  return Execute(*mesh.cache().Get(src, dst, local.element_size(), mesh), local);
}

DTensor Gradient(const Variable& grad, const LiveMesh& mesh, const Layout& layout) {
  return DTensor::FromLocal(grad, mesh, layout);
}

struct RedistributeNode : Function<RedistributeNode> {
  static Variable forward(AutogradContext* ctx, const Variable& local, const RoutePtr& route) {
    Keep(ctx, route);
    if (route->ready.defined()) return std::exchange(route->ready, {});
    return Run(local.detach(), route->from, route->to, route->mesh);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Variable(), Variable()};
    const RoutePtr route = Kept(ctx);
    return GuardBackward([&]() -> variable_list {
      const Layout from = GradientLayout(route->from), to = GradientLayout(route->to);
      const DTensor grad = Gradient(grads[0], route->mesh, to).Redistribute(from);
      const double scale = GradientScale(route->to) / GradientScale(route->from);
      return {scale == 1 ? grad.ToLocal() : grad.ToLocal() * scale, Variable()};
    });
  }
};

// from: with pending minima and maxima, to: without. The gradient goes to the contributions that
// equal the result, in equal parts.
struct ExtremumNode : Function<ExtremumNode> {
  static Variable forward(AutogradContext* ctx, const Variable& local, const RoutePtr& route) {
    Keep(ctx, route);
    const Variable result = Run(local.detach(), route->from, route->to, route->mesh);
    ctx->save_for_backward({local.detach().eq(result).to(local.scalar_type())});
    return result;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Variable(), Variable()};
    const RoutePtr route = Kept(ctx);
    return GuardBackward([&]() -> variable_list {
      const Variable mask = ctx->get_saved_variables()[0];
      Terms counted = route->from.terms();
      for (PartialTerm& p : counted.partials) p.op = ReduceOp::kSum;
      Terms other = route->to.terms();
      for (PartialTerm& p : other.partials) p.op = ReduceOp::kSum;
      const Variable ties =
          Run(mask, ValueOrThrow(Layout::Create(counted, route->from.shape(), route->mesh)),
              ValueOrThrow(Layout::Create(other, route->to.shape(), route->mesh)), route->mesh);
      return {grads[0] * mask / ties, Variable()};
    });
  }
};

struct GradientLayoutNode : Function<GradientLayoutNode> {
  static Variable forward(AutogradContext* ctx, const Variable& local, const RoutePtr& route) {
    Keep(ctx, route);
    return local;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Variable(), Variable()};
    const RoutePtr route = Kept(ctx);
    return GuardBackward([&]() -> variable_list {
      return {Gradient(grads[0], route->mesh, route->from).Redistribute(route->to).ToLocal(),
              Variable()};
    });
  }
};

struct DerivativeNode : Function<DerivativeNode> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& value,
                          const Variable& weight) {
    (void)x;
    ctx->save_for_backward({weight});
    return value.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->get_saved_variables()[0], Variable(), Variable()};
  }
};

}  // namespace

Layout GradientLayout(const Layout& layout) {
  if (!layout.IsPartial()) return layout;
  Terms terms = layout.terms();
  terms.partials.clear();
  for (const PartialTerm& p : layout.terms().partials) {
    if (IsExtremum(p.op)) {
      terms.partials.push_back({ReduceOp::kSum, p.axes});
    } else if (p.op != ReduceOp::kSum && p.op != ReduceOp::kAvg) {
      throw Error(absl::StrCat("a pending ", ReduceOpName(p.op),
                               " has no gradient: ", Describe(layout),
                               ". Reduce a detached tensor, or keep sum, avg, min or max pending"));
    }
  }
  return ValueOrThrow(Layout::Create(std::move(terms), layout.shape(), layout.mesh()));
}

double GradientScale(const Layout& layout) {
  double scale = 1;
  for (const PartialTerm& p : layout.terms().partials) {
    if (p.op == ReduceOp::kAvg) scale *= static_cast<double>(Mesh::GroupSize(p.axes));
  }
  return scale;
}

bool RecordsGradient(const at::Tensor& local) {
  return c10::GradMode::is_enabled() && local.requires_grad();
}

namespace {

// Without the minima and maxima that end on the way to dst: they end by themselves, as their
// gradient needs the values.
Terms WithoutEnding(const Layout& src, const Layout& dst) {
  Terms kept = src.terms();
  const auto ends = [&dst](const PartialTerm& p) {
    const auto& stay = dst.terms().partials;
    return IsExtremum(p.op) && std::find(stay.begin(), stay.end(), p) == stay.end();
  };
  kept.partials.erase(std::remove_if(kept.partials.begin(), kept.partials.end(), ends),
                      kept.partials.end());
  return kept;
}

}  // namespace

bool NeedsValues(const Layout& src, const Layout& dst) {
  return !(WithoutEnding(src, dst) == src.terms());
}

void CheckHasGradient(const Layout& src, const Layout& dst) {
  GradientLayout(src);
  GradientLayout(dst);
}

at::Tensor RecordRedistributed(const at::Tensor& local, const at::Tensor& value, const Layout& src,
                               const Layout& dst, const LiveMesh& mesh) {
  const RoutePtr route = c10::make_intrusive<Route>(src, dst, mesh);
  route->ready = value;
  return RedistributeNode::apply(local, route);
}

at::Tensor RedistributeRecorded(const at::Tensor& local, const Layout& src, const Layout& dst,
                                const LiveMesh& mesh) {
  CheckHasGradient(src, dst);
  Terms kept = WithoutEnding(src, dst);
  if (kept == src.terms()) {
    return RedistributeNode::apply(local, c10::make_intrusive<Route>(src, dst, mesh));
  }
  const Layout between = ValueOrThrow(Layout::Create(std::move(kept), src.shape(), mesh));
  const at::Tensor value =
      ExtremumNode::apply(local, c10::make_intrusive<Route>(src, between, mesh));
  if (between == dst) return value;
  return RedistributeNode::apply(value, c10::make_intrusive<Route>(between, dst, mesh));
}

at::Tensor WithGradientLayout(const at::Tensor& local, const Layout& of, const Layout& given,
                              const LiveMesh& mesh) {
  const Layout want = GradientLayout(of);
  if (want == given || !RecordsGradient(local)) return local;
  return GradientLayoutNode::apply(local, c10::make_intrusive<Route>(given, want, mesh));
}

at::Tensor WithDerivative(const at::Tensor& value, const at::Tensor& x, const at::Tensor& weight) {
  return DerivativeNode::apply(x, value, weight);
}

}  // namespace lins
