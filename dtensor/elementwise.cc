// Elementwise operations, in place too, and comparisons of whole tensors.
#include <c10/core/GradMode.h>

#include <algorithm>

#include "dtensor/gradient.h"
#include "dtensor/ops_internal.h"

namespace lins {
namespace {

constexpr const char* kNames[] = {"add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge"};
const char* Name(BinaryOp op) { return kNames[static_cast<int>(op)]; }
bool IsAdditive(BinaryOp op) { return op == BinaryOp::kAdd || op == BinaryOp::kSub; }

template <typename A, typename B>
at::Tensor Apply(BinaryOp op, const A& a, const B& b) {
  switch (op) {
    case BinaryOp::kAdd:
      return at::add(a, b);
    case BinaryOp::kSub:
      return at::sub(a, b);
    case BinaryOp::kMul:
      return at::mul(a, b);
    case BinaryOp::kDiv:
      return at::div(a, b);
    case BinaryOp::kEq:
      return at::eq(a, b);
    case BinaryOp::kNe:
      return at::ne(a, b);
    case BinaryOp::kLt:
      return at::lt(a, b);
    case BinaryOp::kLe:
      return at::le(a, b);
    case BinaryOp::kGt:
      return at::gt(a, b);
    case BinaryOp::kGe:
      return at::ge(a, b);
  }
  LINS_CHECK(false, "operation ", static_cast<int>(op));
}

// scalar op tensor
at::Tensor ApplyReflected(BinaryOp op, const c10::Scalar& a, const at::Tensor& b) {
  switch (op) {
    case BinaryOp::kAdd:
      return at::add(b, a);
    case BinaryOp::kSub:
      return at::rsub(b, a);
    case BinaryOp::kMul:
      return at::mul(b, a);
    case BinaryOp::kDiv:
      return at::mul(at::reciprocal(b), a);
    case BinaryOp::kEq:
      return at::eq(b, a);
    case BinaryOp::kNe:
      return at::ne(b, a);
    case BinaryOp::kLt:
      return at::gt(b, a);
    case BinaryOp::kLe:
      return at::ge(b, a);
    case BinaryOp::kGt:
      return at::lt(b, a);
    case BinaryOp::kGe:
      return at::le(b, a);
  }
  LINS_CHECK(false, "operation ", static_cast<int>(op));
}

Shape BroadcastShape(BinaryOp op, const DTensor& a, const DTensor& b) {
  const Shape &x = a.shape(), &y = b.shape();
  Shape out(std::max(x.size(), y.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {  // from the last dimension
    const int64_t m = i < x.size() ? x[x.size() - 1 - i] : 1,
                  n = i < y.size() ? y[y.size() - 1 - i] : 1;
    if (m != n && m != 1 && n != 1) {
      throw Error(absl::StrCat(Name(op), ": shapes ", ShapeToString(x), " and ", ShapeToString(y),
                               " do not broadcast: sizes ", m, " and ", n, " at dimension ", i + 1,
                               " from the last"));
    }
    out[out.size() - 1 - i] = m == 1 ? n : m;
  }
  return out;
}

// Where dimension `dim` of an operand lies in an output of `ndim` dimensions.
int OutDim(int dim, size_t operand_ndim, size_t out_ndim) {
  return dim + static_cast<int>(out_ndim - operand_ndim);
}

// The output layout that an operand would keep: complete, its splits on the output's dimensions.
Layout OntoOutput(const Layout& x, const Shape& out) {
  if (x.shape() == out) return WithoutPartials(x);
  Terms terms;
  for (const ShardTerm& t : x.terms().shards) {
    const int dim = OutDim(t.dim, x.shape().size(), out.size());
    if (out[dim] == x.shape()[t.dim]) terms.shards.push_back({dim, t.axes});
  }
  return MakeLayout(std::move(terms), out, x.mesh());
}

// What an operand of `shape` must have for an output under `out`: F and O have no part of a smaller
// operand, which is then whole.
Layout OperandLayout(const Layout& out, const Shape& shape) {
  if (shape == out.shape()) return out;
  Terms terms;
  for (const ShardTerm& t : out.terms().shards) {
    const int dim = t.dim - OutDim(0, shape.size(), out.shape().size());
    if (dim >= 0 && shape[dim] == out.shape()[t.dim]) terms.shards.push_back({dim, t.axes});
  }
  return MakeLayout(std::move(terms), shape, out.mesh());
}

// Of the layouts that the operands would keep, the one that costs the fewest bytes; then the one
// that leaves the least to compute; then the first operand's.
Layout ChooseLayout(const DTensor& a, const DTensor& b, const Shape& shape) {
  const Layout x = OntoOutput(a.layout(), shape), y = OntoOutput(b.layout(), shape);
  if (x == y) return x;
  const auto bytes = [&](const Layout& out) {
    int64_t sum = 0;
    for (const DTensor* t : {&a, &b}) {
      sum += ValueOrThrow(CachedPlan(t->layout(), OperandLayout(out, t->shape()),
                                     t->ToLocal().element_size()))
                 ->recv_bytes;
    }
    return std::pair(sum, out.MaxLocalNumel());
  };
  return bytes(y) < bytes(x) ? y : x;
}

// The operand's local tensor, ready for an elementwise operation whose output has layout `out`.
at::Tensor Fit(const DTensor& x, const Layout& out) {
  if (x.shape() == out.shape()) return x.Redistribute(out).ToLocal();
  const Layout layout = OperandLayout(out, x.shape());
  const DTensor y = x.Redistribute(layout);
  if (out.IsFlatOrOwned() && x.dim() > 0) {
    const at::Tensor whole = y.ToLocal().expand(Sizes(out.shape()));
    return DTensor::FromLocal(whole, x.mesh(), Layout::Replicated(out.shape(), x.mesh()))
        .Redistribute(out)
        .ToLocal();
  }
  // Every rank sees the gradient of its own part of the output only: over the axes that split the
  // output but not this operand, those are to be added up.
  if (!RecordsGradient(y.ToLocal())) return y.ToLocal();
  Terms pending = layout.terms();
  Axes summed;
  for (const SubAxis& a : out.SplitAxes()) {
    if (!Contains(x.mesh(), layout.SplitAxes(), {&a, 1})) summed.push_back(a);
  }
  pending.partials.push_back({ReduceOp::kSum, summed});
  return WithGradientLayout(y.ToLocal(), layout, MakeLayout(pending, layout.shape(), x.mesh()),
                            x.mesh());
}

DTensor BinaryOfTensors(BinaryOp op, const DTensor& a, const DTensor& b) {
  CheckSameMesh(Name(op), a, b);
  const bool alike = a.layout() == b.layout() && a.layout().IsPartial() && IsLinear(a.layout());
  if (alike && IsAdditive(op)) {
    return Locally(Name(op), a, [&] {
      return DTensor::FromLocal(Apply(op, a.ToLocal(), b.ToLocal()), a.mesh(), a.layout());
    });
  }
  const Layout out = ChooseLayout(a, b, BroadcastShape(op, a, b));
  const at::Tensor x = Fit(a, out), y = Fit(b, out);
  return Locally(Name(op), a, [&] { return DTensor::FromLocal(Apply(op, x, y), a.mesh(), out); });
}

}  // namespace

void CheckSameMesh(absl::string_view op, const DTensor& a, const DTensor& b) {
  if (static_cast<const Mesh&>(a.mesh()) == b.mesh()) return;
  throw Error(absl::StrCat(op, ": the operands live on different meshes, ", a.mesh().ToString(),
                           " and ", b.mesh().ToString()));
}

int64_t WrapDim(absl::string_view op, const DTensor& x, int64_t dim) {
  const int64_t n = std::max<int64_t>(x.dim(), 1);
  if (dim < -n || dim >= n) {
    throw Error(absl::StrCat(op, ": dimension ", dim, " is outside shape ",
                             ShapeToString(x.shape()), ": legal are ", -n, " to ", n - 1));
  }
  return dim < 0 ? dim + n : dim;
}

void ReduceOverMesh(const at::Tensor& value, ReduceOp op, const LiveMesh& mesh) {
  mesh.world().Everyone(Role::kOther).AllReduce(value, op).Wait();
}

DTensor Reduced(const DTensor& x) {
  return x.layout().IsPartial() ? x.Redistribute(WithoutPartials(x.layout())) : x;
}

DTensor Binary(BinaryOp op, const Operand& a, const Operand& b) {
  const auto* x = std::get_if<DTensor>(&a);
  const auto* y = std::get_if<DTensor>(&b);
  if (x && y) return BinaryOfTensors(op, *x, *y);
  if (!x && !y) throw Error(absl::StrCat(Name(op), ": neither operand is a DTensor"));
  const bool scales = IsLinear(x ? x->layout() : y->layout()) &&
                      (op == BinaryOp::kMul || (op == BinaryOp::kDiv && x));
  const DTensor t = scales ? (x ? *x : *y) : Reduced(x ? *x : *y);
  return Locally(Name(op), t, [&] {
    const at::Tensor out = x ? Apply(op, t.ToLocal(), std::get<c10::Scalar>(b))
                             : ApplyReflected(op, std::get<c10::Scalar>(a), t.ToLocal());
    return DTensor::FromLocal(out, t.mesh(), t.layout());
  });
}

void BinaryInPlace(BinaryOp op, const DTensor& a, const Operand& b) {
  const auto refuse = [&](const auto&... why) {
    throw Error(absl::StrCat("in-place ", Name(op), " on ", Describe(a.layout()), ": ", why...));
  };
  const at::Tensor local = a.ToLocal();
  const auto run = [&](const auto& other) {
    Locally(absl::StrCat("in-place ", Name(op)), a, [&] {
      switch (op) {
        case BinaryOp::kAdd:
          return local.add_(other);
        case BinaryOp::kSub:
          return local.sub_(other);
        case BinaryOp::kMul:
          return local.mul_(other);
        case BinaryOp::kDiv:
          return local.div_(other);
        default:
          LINS_CHECK(false, "in-place ", Name(op));
      }
    });
  };
  if (const auto* scalar = std::get_if<c10::Scalar>(&b)) {
    const bool scales = !IsAdditive(op) && IsLinear(a.layout());
    if (a.layout().IsPartial() && !scales) {
      refuse(
          "the pending reduction would have to end first: redistribute it, or use the form that is "
          "not in place");
    }
    return run(*scalar);
  }
  const DTensor& y = std::get<DTensor>(b);
  CheckSameMesh(Name(op), a, y);
  if (BroadcastShape(op, a, y) != a.shape()) {
    refuse("shape ", ShapeToString(y.shape()),
           " of the other operand does not broadcast to its own");
  }
  if (a.layout().IsPartial()) {
    if (!IsAdditive(op) || !IsLinear(a.layout()) || !(a.layout() == y.layout())) {
      refuse("its pending reduction lasts only when what is added is pending alike, not ",
             Describe(y.layout()));
    }
    return run(y.ToLocal());
  }
  run(Fit(y, a.layout()));
}

DTensor Neg(const DTensor& x) {
  const DTensor t = IsLinear(x.layout()) ? x : Reduced(x);
  return Locally("neg", t,
                 [&] { return DTensor::FromLocal(t.ToLocal().neg(), t.mesh(), t.layout()); });
}

DTensor Abs(const DTensor& x) {
  const DTensor t = Reduced(x);
  return Locally("abs", t,
                 [&] { return DTensor::FromLocal(t.ToLocal().abs(), t.mesh(), t.layout()); });
}

DTensor Clone(const DTensor& x) {
  return DTensor::FromLocal(x.ToLocal().clone(), x.mesh(), x.layout());
}

DTensor Detach(const DTensor& x) {
  return DTensor::FromLocal(x.ToLocal().detach(), x.mesh(), x.layout());
}

DTensor To(const DTensor& x, at::ScalarType dtype) {
  if (dtype == x.dtype()) return x;
  const DTensor t = Reduced(x);
  return DTensor::FromLocal(t.ToLocal().to(dtype), t.mesh(), t.layout());
}

namespace {

// Whether `fn` of the operands' local tensors under one layout is true on every rank.
template <typename Fn>
bool EveryRank(absl::string_view op, const DTensor& a, const DTensor& b, const Fn& fn) {
  CheckSameMesh(op, a, b);
  c10::NoGradGuard no_grad;
  const Layout out = ChooseLayout(a, b, a.shape());
  const at::Tensor x = Fit(a, out), y = Fit(b, out);
  const bool own = Locally(op, a, [&]() -> bool { return fn(x, y); });
  const at::Tensor all = at::full({1}, own ? 1 : 0, x.options().dtype(at::kInt));
  ReduceOverMesh(all, ReduceOp::kMin, a.mesh());
  return all.item<int>() == 1;
}

}  // namespace

bool Equal(const DTensor& a, const DTensor& b) {
  CheckSameMesh("equal", a, b);
  if (a.shape() != b.shape()) return false;
  return EveryRank("equal", a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return at::eq(x, y).all().item<bool>();
  });
}

bool AllClose(const DTensor& a, const DTensor& b, double rtol, double atol, bool equal_nan) {
  if (a.shape() != b.shape()) {
    throw Error(absl::StrCat("allclose: shapes ", ShapeToString(a.shape()), " and ",
                             ShapeToString(b.shape()), " differ"));
  }
  return EveryRank("allclose", a, b, [&](const at::Tensor& x, const at::Tensor& y) {
    return at::allclose(x, y, rtol, atol, equal_nan);
  });
}

c10::Scalar Item(const DTensor& x) {
  if (x.layout().numel() != 1) {
    throw Error(absl::StrCat("item: a tensor of shape ", ShapeToString(x.shape()), " has ",
                             x.layout().numel(), " elements, not one"));
  }
  c10::NoGradGuard no_grad;
  return x.FullTensor().item();
}

}  // namespace lins
