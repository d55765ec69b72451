#include "placement/reachable.h"

#include "absl/strings/str_cat.h"
#include "mesh/error.h"
#include "placement/search.h"

namespace lins {
namespace {

Axes PartialOver(const Layout& layout, ReduceOp op) {
  for (const PartialTerm& p : layout.terms().partials) {
    if (p.op == op) return p.axes;
  }
  return {};
}

}  // namespace

absl::Status CheckReachable(const Layout& src, const Layout& dst) {
  if (!(src.mesh() == dst.mesh())) {
    return InvalidArgument("cannot redistribute between meshes: ", src.mesh().ToString(), " and ",
                           dst.mesh().ToString());
  }
  if (src.shape() != dst.shape()) {
    return InvalidArgument("cannot redistribute shape ", ShapeToString(src.shape()), " to ",
                           ShapeToString(dst.shape()));
  }
  const Mesh& mesh = src.mesh();
  for (const PartialTerm& want : dst.terms().partials) {
    for (const PartialTerm& have : src.terms().partials) {
      if (have.op == want.op) continue;
      for (const SubAxis& a : want.axes) {
        for (const SubAxis& b : have.axes) {
          if (Overlap(a, b)) {
            return InvalidArgument("cannot turn ", src.ToString(), " into ", dst.ToString(),
                                   ": partial ", ReduceOpName(have.op), " is not partial ",
                                   ReduceOpName(want.op), "; redistribute to R first");
          }
        }
      }
    }
    if (!CanBegin(want.op) && !Contains(mesh, PartialOver(src, want.op), want.axes)) {
      return InvalidArgument("cannot turn ", src.ToString(), " into ", dst.ToString(),
                             ": a partial ", ReduceOpName(want.op),
                             " cannot be made of complete values; legal are sum, ",
                             "avg, min and max");
    }
  }
  return absl::OkStatus();
}

}  // namespace lins
