// A distributed tensor: this rank's part of a global tensor, and the layout that says which part.
//
//   DTensor w = DTensor::Distribute(full, mesh, "S0(gpu)");   // every rank passes the same `full`
//   w.Redistribute("R").ToLocal();                            // all-gather over gpu
//
// Recorded by autograd: a gradient flows from what is computed back to the local tensor (gradient.h
// says under which layout). A DTensor is a value whose copies share the local tensor. Operations
// marked collective must be called by every rank of the mesh, in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/live_mesh.h"
#include "placement/layout.h"

namespace lins {

class PendingDTensor;

class DTensor {
 public:
  // Keeps this rank's part of `full`. With src_rank, that rank's values are broadcast first
  // (collective) and the others' `full` gives only shape and dtype, which must agree. A partial
  // layout divides the value over the ranks.
  static DTensor Distribute(const at::Tensor& full, const LiveMesh& mesh,
                            absl::string_view notation,
                            std::optional<int64_t> src_rank = std::nullopt);
  static DTensor Distribute(const at::Tensor& full, const LiveMesh& mesh, const Layout& layout,
                            std::optional<int64_t> src_rank = std::nullopt);
  // Takes `local` as this rank's part, its autograd history included. Without a shape, the global
  // one is worked out from all ranks' local shapes (collective), and it is an error when they fit
  // no shape under the layout. With a shape, an error when `local` does not fit it. No copy where
  // `local` is contiguous.
  static DTensor FromLocal(const at::Tensor& local, const LiveMesh& mesh,
                           absl::string_view notation, std::optional<Shape> shape = std::nullopt);
  static DTensor FromLocal(const at::Tensor& local, const LiveMesh& mesh, const Layout& layout);

  // Collective. The same values under another layout of the same mesh and shape.
  DTensor Redistribute(absl::string_view notation) const;
  DTensor Redistribute(const Layout& layout) const;
  // The same, begun: it goes on beside the caller, who leaves both tensors alone until it has
  // waited.
  PendingDTensor RedistributeAsync(absl::string_view notation) const;
  PendingDTensor RedistributeAsync(const Layout& layout) const;
  at::Tensor FullTensor() const;  // collective: Redistribute("R").ToLocal()
  const at::Tensor& ToLocal() const { return local_; }
  // As ToLocal(), for a use whose gradient on this rank has layout `gradient` (such as +sum(gpu)
  // where every rank of gpu computes with the whole tensor, but on data of its own). Its backward
  // is collective.
  at::Tensor ToLocal(const Layout& gradient) const;

  const Layout& layout() const { return layout_; }
  const LiveMesh& mesh() const { return mesh_; }
  const Shape& shape() const { return layout_.shape(); }
  int64_t dim() const { return static_cast<int64_t>(shape().size()); }
  at::ScalarType dtype() const { return local_.scalar_type(); }

 private:
  friend class PendingDTensor;
  DTensor(at::Tensor local, Layout layout, LiveMesh mesh)
      : local_(std::move(local)), layout_(std::move(layout)), mesh_(std::move(mesh)) {}

  at::Tensor local_;
  Layout layout_;
  LiveMesh mesh_;
};

// A redistribution in flight. Copies share it.
class PendingDTensor {
 public:
  // Blocks until the result is there and returns it, recorded by autograd where its source is.
  // Throws what failed, on every rank.
  DTensor Wait();
  bool Done() const;  // without blocking; true also after a failure

 private:
  friend class DTensor;
  struct State;
  explicit PendingDTensor(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace lins
