// Gradients of distributed tensors: which layout they have, and the autograd nodes that move them.
//
// The gradient that autograd computes for a local tensor is the derivative with respect to that
// local tensor, of a loss that all ranks compute alike. So, axis by axis of the tensor's layout:
//
//   S, F, O   the gradient is split in the same way
//   R         every rank has the same gradient
//   +sum      every rank has the same gradient: that of the sum
//   +avg      every rank has the same: that of the average, divided by the group's size
//   +min/max  a gradient of one's own: those of the group add up to the gradient of the value
//
// A redistribution keeps the value, so its backward is the redistribution of the gradient between
// the layouts of the gradients: a gather becomes a slice, a slice a gather, a reduction nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/live_mesh.h"
#include "placement/layout.h"

namespace lins {

// The layout of the gradient of a tensor under `layout`, by the table above. Throws an Error for
// pending products and bitwise reductions, which have none.
Layout GradientLayout(const Layout& layout);
// How often the gradient of the value contains that of a local tensor: the size of +avg's group.
double GradientScale(const Layout& layout);

// True when a node has to be recorded for an operation on `local`.
bool RecordsGradient(const at::Tensor& local);

// dst's local tensor out of src's, recorded. Collective, and so is its backward.
at::Tensor RedistributeRecorded(const at::Tensor& local, const Layout& src, const Layout& dst,
                                const LiveMesh& mesh);

// The parts of it, for a redistribution that another thread carries out. NeedsValues: its gradient
// needs the values on the way, so RedistributeRecorded is all there is. Otherwise `value`, what a
// plain redistribution made of `local`, is recorded afterwards.
bool NeedsValues(const Layout& src, const Layout& dst);
void CheckHasGradient(const Layout& src, const Layout& dst);  // throws an Error where there is none
at::Tensor RecordRedistributed(const at::Tensor& local, const at::Tensor& value, const Layout& src,
                               const Layout& dst, const LiveMesh& mesh);

// `local` itself; on the way back its gradient, which has layout `given`, becomes one of layout
// GradientLayout(of). Its backward is collective.
at::Tensor WithGradientLayout(const at::Tensor& local, const Layout& of, const Layout& given,
                              const LiveMesh& mesh);

// `value`, recorded as a function of `x` whose derivative is the elementwise `weight` (of x's
// shape), with the gradient broadcast to x's shape.
at::Tensor WithDerivative(const at::Tensor& value, const at::Tensor& x, const at::Tensor& weight);

}  // namespace lins
