// Sums, means, extrema and norms. The indices of extrema are in argmax.cc.
#include <c10/core/GradMode.h>

#include <cmath>

#include "dtensor/extremum.h"
#include "dtensor/gradient.h"
#include "dtensor/reduce_dims.h"

namespace lins {
namespace {

DTensor Finish(const DTensor& kept, const std::vector<int64_t>& dims, bool keepdim) {
  return keepdim ? kept : DropDims(kept, dims);
}

void CheckFloating(absl::string_view op, const DTensor& x) {
  if (at::isFloatingType(x.dtype()) || at::isComplexType(x.dtype())) return;
  throw Error(
      absl::StrCat(op, " needs a floating-point or complex tensor, not ", c10::toString(x.dtype()),
                   ": convert it first, as by x.to(torch.float32)"),
      Error::Kind::kRuntime);
}

DTensor SumKept(const DTensor& x, const std::vector<int64_t>& dims) {
  const auto sum = [](const at::Tensor& local, std::vector<int64_t> own, bool) {
    return at::sum(local, own, /*keepdim=*/true);
  };
  return ReduceLocally("sum", x, dims, KeptLayout(x.layout(), dims, ReduceOp::kSum), sum);
}

DTensor Extremum(const char* op, const DTensor& input, bool max, const Dims& given, bool keepdim) {
  const std::vector<int64_t> dims = NormalDims(op, input, given);
  CheckNotEmpty(op, input, dims);
  const DTensor x = Reduced(WholeIfFlat(input, dims));
  const Layout kept = KeptLayout(x.layout(), dims, max ? ReduceOp::kMax : ReduceOp::kMin);
  const auto local_extremum = [max](const at::Tensor& local, std::vector<int64_t> own,
                                    bool elsewhere) {
    if (elsewhere) return local;
    for (int64_t d : own) {
      if (local.size(d) > 0) continue;
      std::vector<int64_t> sizes = local.sizes().vec();
      for (int64_t e : own) sizes[e] = 1;
      return at::full(sizes, Identity(local.scalar_type(), max), local.options());
    }
    return max ? at::amax(local, own, true) : at::amin(local, own, true);
  };
  if (!RecordsGradient(x.ToLocal()) || ReducedAxes(x.layout(), dims).empty()) {
    return Finish(ReduceLocally(op, x, dims, kept, local_extremum), dims, keepdim);
  }
  // With a gradient the reduction ends here: all elements that equal the extremum share it.
  const auto value_and_weight = [&] {
    c10::NoGradGuard no_grad;
    const DTensor detached = Detach(x);
    const DTensor value = Reduced(ReduceLocally(op, detached, dims, kept, local_extremum));
    const bool flat = x.layout().terms().flat.has_value();
    const auto spread = [flat](const DTensor& t) {
      return flat ? t.ToLocal().reshape({}) : t.ToLocal();
    };
    const at::Tensor mask = detached.ToLocal().eq(spread(value)).to(x.dtype());
    const DTensor ties = Reduced(SumKept(DTensor::FromLocal(mask, x.mesh(), x.layout()), dims));
    return std::pair(value, mask / spread(ties));
  };
  const auto [value, weight] = value_and_weight();
  const at::Tensor local = WithDerivative(value.ToLocal(), x.ToLocal(), weight);
  return Finish(DTensor::FromLocal(local, x.mesh(), value.layout()), dims, keepdim);
}

// Square root whose derivative at 0 is 0, as that of torch's norm.
at::Tensor Root(const at::Tensor& squares) {
  const at::Tensor zero = squares == 0;
  return at::where(zero, squares, at::where(zero, at::ones_like(squares), squares).sqrt());
}

}  // namespace

c10::Scalar Identity(at::ScalarType dtype, bool max) {
  if (at::isFloatingType(dtype)) {
    return max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
  switch (dtype) {
    case at::kBool:
      return !max;
    case at::kByte:
      return max ? 0 : 255;
    case at::kChar:
      return max ? -128 : 127;
    case at::kShort:
      return max ? -32768 : 32767;
    case at::kInt:
      return max ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
    case at::kLong:
      return max ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
    default:
      throw Error(absl::StrCat(max ? "max" : "min", " of ", c10::toString(dtype),
                               ": real numbers, integers and bool have an order"),
                  Error::Kind::kRuntime);
  }
}

DTensor Sum(const DTensor& x, const Dims& given, bool keepdim) {
  const std::vector<int64_t> dims = NormalDims("sum", x, given);
  const DTensor y = WholeIfFlat(IsLinear(x.layout()) ? x : Reduced(x), dims);
  return Finish(SumKept(y, dims), dims, keepdim);
}

DTensor Mean(const DTensor& x, const Dims& given, bool keepdim) {
  CheckFloating("mean", x);
  const std::vector<int64_t> dims = NormalDims("mean", x, given);
  const DTensor y = WholeIfFlat(IsLinear(x.layout()) ? x : Reduced(x), dims);
  if (ReducedAxes(y.layout(), dims).empty()) {
    const auto mean = [](const at::Tensor& local, std::vector<int64_t> own, bool) {
      return at::mean(local, own, /*keepdim=*/true);
    };
    return Finish(
        ReduceLocally("mean", y, dims, KeptLayout(y.layout(), dims, ReduceOp::kSum), mean), dims,
        keepdim);
  }
  int64_t count = 1;
  for (int64_t d : dims) count *= x.shape()[d];
  return Finish(Div(SumKept(y, dims), c10::Scalar(count)), dims, keepdim);
}

DTensor Max(const DTensor& x, const Dims& dims, bool keepdim) {
  return Extremum("max", x, true, dims, keepdim);
}

DTensor Min(const DTensor& x, const Dims& dims, bool keepdim) {
  return Extremum("min", x, false, dims, keepdim);
}

DTensor Norm(const DTensor& x, double p, const Dims& given, bool keepdim) {
  CheckFloating("norm", x);
  if (p == 1) return Sum(Abs(x), given, keepdim);
  if (p == std::numeric_limits<double>::infinity()) return Max(Abs(x), given, keepdim);
  if (p != 2) throw Error(absl::StrCat("norm: p=", p, " is not 1, 2 or inf"));
  const std::vector<int64_t> dims = NormalDims("norm", x, given);
  const DTensor y = WholeIfFlat(Reduced(x), dims);
  const bool pending = !ReducedAxes(y.layout(), dims).empty();
  const auto norm = [pending](const at::Tensor& local, std::vector<int64_t> own, bool) {
    if (!pending) return at::linalg_vector_norm(local, 2, own, /*keepdim=*/true);
    const bool narrow = local.scalar_type() == at::kHalf || local.scalar_type() == at::kBFloat16;
    const at::Tensor wide = narrow ? local.to(at::kFloat) : local;
    const at::Tensor squares = wide.is_complex() ? at::real(wide * wide.conj()) : wide * wide;
    return at::sum(squares, own, /*keepdim=*/true);
  };
  const DTensor kept =
      ReduceLocally("norm", y, dims, KeptLayout(y.layout(), dims, ReduceOp::kSum), norm);
  if (!pending) return Finish(kept, dims, keepdim);
  const DTensor squares = Reduced(kept);
  const at::Tensor root = Root(squares.ToLocal());
  const DTensor result = DTensor::FromLocal(root, x.mesh(), squares.layout());
  return Finish(at::isComplexType(x.dtype()) ? result : To(result, x.dtype()), dims, keepdim);
}

}  // namespace lins
