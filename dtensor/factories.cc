#include "dtensor/factories.h"

#include <ATen/ATen.h>

#include "dtensor/ops_internal.h"
#include "dtensor/random.h"

namespace lins {
namespace {

at::TensorOptions Options(const LiveMesh& mesh, const OptionalType& dtype) {
  const auto type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  return at::TensorOptions().dtype(type).device(mesh.world().device());
}

// fill(local, complete layout) makes this rank's part of the complete tensor, which then takes its
// layout.
template <typename Fn>
DTensor Make(const Layout& layout, const LiveMesh& mesh, const at::TensorOptions& options,
             const Fn& fill) {
  if (!(layout.mesh() == static_cast<const Mesh&>(mesh))) {
    throw Error(absl::StrCat("layout ", Describe(layout), " is not one on ", mesh.ToString()));
  }
  const Layout complete = WithoutPartials(layout);
  const at::Tensor local = fill(Sizes(complete.LocalShape(mesh.rank())), complete, options);
  return DTensor::FromLocal(local, mesh, complete).Redistribute(layout);
}

DTensor Random(const Layout& layout, const LiveMesh& mesh, uint64_t seed, const OptionalType& dtype,
               Distribution distribution) {
  const at::TensorOptions options = Options(mesh, dtype);
  return Make(layout, mesh, options, [&](const auto& sizes, const Layout& complete, const auto&) {
    const at::Tensor host = at::empty(sizes, options.device(at::kCPU));
    FillRandom(host, complete, mesh.rank(), seed, distribution);
    return host.to(options.device());
  });
}

}  // namespace

DTensor Full(const Layout& layout, const LiveMesh& mesh, const c10::Scalar& value,
             OptionalType dtype) {
  if (!dtype) {
    if (value.isBoolean()) {
      dtype = at::kBool;
    } else if (value.isIntegral(/*includeBool=*/false)) {
      dtype = at::kLong;
    } else if (value.isComplex()) {
      dtype = c10::toComplexType(c10::typeMetaToScalarType(c10::get_default_dtype()));
    }
  }
  return Make(layout, mesh, Options(mesh, dtype),
              [&](const auto& sizes, const Layout&, const auto& options) {
                return at::full(sizes, value, options);
              });
}

DTensor Empty(const Layout& layout, const LiveMesh& mesh, OptionalType dtype) {
  return DTensor::FromLocal(at::empty(Sizes(layout.LocalShape(mesh.rank())), Options(mesh, dtype)),
                            mesh, layout);
}

DTensor Zeros(const Layout& layout, const LiveMesh& mesh, OptionalType dtype) {
  const at::TensorOptions options = Options(mesh, dtype);
  return Full(layout, mesh, 0, c10::typeMetaToScalarType(options.dtype()));
}

DTensor Ones(const Layout& layout, const LiveMesh& mesh, OptionalType dtype) {
  const at::TensorOptions options = Options(mesh, dtype);
  return Full(layout, mesh, 1, c10::typeMetaToScalarType(options.dtype()));
}

DTensor Rand(const Layout& layout, const LiveMesh& mesh, uint64_t seed, OptionalType dtype) {
  return Random(layout, mesh, seed, dtype, Distribution::kUniform);
}

DTensor RandN(const Layout& layout, const LiveMesh& mesh, uint64_t seed, OptionalType dtype) {
  return Random(layout, mesh, seed, dtype, Distribution::kNormal);
}

}  // namespace lins
