// Meshes, layouts and values that the tests of DTensor's arithmetic sweep over. Values are whole
// numbers: results are compared exactly with those of at:: on the whole tensors.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "dtensor/ops.h"
#include "mesh/error.h"
#include "tests/dtensor/on_mesh.h"

namespace lins::testing {

using Sizes = std::vector<int64_t>;

class OnMeshes : public ::testing::TestWithParam<Sizes> {
 protected:
  static void Run(const std::function<void(const LiveMesh&)>& fn) { OnMesh(GetParam(), fn); }
};

inline const auto kMeshes = ::testing::Values(Sizes{2, 2}, Sizes{2, 3}, Sizes{1, 4});
inline std::string MeshName(const ::testing::TestParamInfo<Sizes>& info) {
  return absl::StrJoin(info.param, "x");
}

// R, S in every order, F, O, and those with pending sums and extrema.
inline std::vector<std::string> LayoutsOf(int64_t ndim) {
  if (ndim == 0) return {"R", "F(gpu)", "O(gpu; 1)", "+sum(gpu)", "+max(node)"};
  std::vector<std::string> out = {"R",
                                  "S0(node)",
                                  "S0(gpu)",
                                  "S0(node,gpu)",
                                  "S0(gpu,node)",
                                  "F(gpu)",
                                  "F(gpu,node)",
                                  "O(gpu; 1)",
                                  "O(node,gpu; 2)",
                                  "+sum(gpu)",
                                  "+sum(node,gpu)",
                                  "+max(gpu)",
                                  "S0(gpu) +sum(node)",
                                  "F(node) +min(gpu)"};
  if (ndim == 1) return out;
  for (const char* text :
       {"S1(gpu)", "S0(node) S1(gpu)", "S0(gpu) S1(node)", "S1(gpu) +sum(node)"}) {
    out.push_back(text);
  }
  return out;
}

inline at::Tensor Whole(const Sizes& shape, int64_t seed = 0, at::ScalarType dtype = at::kLong) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  const at::Tensor i = at::arange(n, at::kLong);
  return (i * 7 + i * i * (3 + seed) + seed * 5).remainder(19).sub(9).view(shape).to(dtype);
}

// `whole` under a layout. Where reductions are pending every rank holds something else, and the
// reduction makes `whole`.
inline DTensor Place(const at::Tensor& whole, const LiveMesh& mesh, absl::string_view notation) {
  const Shape shape(whole.sizes().begin(), whole.sizes().end());
  const Layout layout = ValueOrThrow(Layout::Parse(notation, shape, mesh));
  Terms complete = layout.terms();
  complete.partials.clear();
  at::Tensor local =
      DTensor::Distribute(whole, mesh, ValueOrThrow(Layout::Create(complete, shape, mesh)))
          .ToLocal();
  for (const PartialTerm& p : layout.terms().partials) {
    const int64_t k = Mesh::GroupSize(p.axes), i = mesh.IndexInGroup(p.axes, mesh.rank());
    const int64_t offset = i + 1 < k ? i + 1 : -k * (k - 1) / 2;  // they add up to nothing
    switch (p.op) {
      case ReduceOp::kSum:
        local = i == 0 ? local + offset : at::full_like(local, offset);
        break;
      case ReduceOp::kAvg:
        local = local + offset;
        break;
      case ReduceOp::kMax:
        local = local - (k - 1 - i);
        break;
      case ReduceOp::kMin:
        local = local + i;
        break;
      default:
        throw Error("no contributions for this operation");
    }
  }
  return DTensor::FromLocal(local, mesh, layout);
}

// The whole of a DTensor equals a plain tensor: shape, type and every element.
inline bool Same(const DTensor& got, const at::Tensor& want) {
  const at::Tensor full = got.FullTensor();
  return full.sizes() == want.sizes() && full.scalar_type() == want.scalar_type() &&
         at::equal(full, want);
}

// The collectives that fn begins on this rank, by kind.
template <typename Fn>
std::vector<std::string> Collectives(const LiveMesh& mesh, const Fn& fn) {
  RankContext& context = mesh.world().context();
  const int trace = context.StartTrace();
  fn();
  std::vector<std::string> out;
  for (const TraceRecord& r : context.Trace(trace)) out.push_back(r.op);
  context.StopTrace(trace);
  return out;
}

// The message of the Error that fn throws, or "".
template <typename Fn>
std::string ErrorOf(const Fn& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

inline void ExpectError(const std::function<void()>& fn, const std::string& part) {
  const std::string message = ErrorOf(fn);
  EXPECT_NE(message, "") << "no error, where one with '" << part << "' is due";
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

using Strings = std::vector<std::string>;

}  // namespace lins::testing
