// The elements that two ranks have in common under two layouts, as places in a local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/layout.h"

namespace lins {

// The common elements of (x, a) and (y, b), in the row-major order of the global tensor, addressed
// within the contiguous local tensor that rank a holds under x.
class Region {
 public:
  static Region Common(const Layout& x, int64_t a, const Layout& y, int64_t b);

  int64_t numel() const { return numel_; }
  // True when the elements are one contiguous run of the local tensor; then at Begin().
  bool IsRun() const { return runs_.size() <= 1; }
  int64_t Begin() const { return runs_.empty() ? 0 : runs_[0].first; }

  // Copies the elements out of `local` into the 1-D `flat`, or back.
  void Extract(const at::Tensor& local, const at::Tensor& flat) const;
  void Insert(const at::Tensor& local, const at::Tensor& flat) const;

 private:
  // A box of the local tensor where both sides are boxes. Otherwise its runs, copied one by one out
  // of a CPU tensor or back; on other devices index numbers.
  at::Tensor BoxView(const at::Tensor& local) const;
  void CopyRuns(const at::Tensor& local, const at::Tensor& flat, bool out) const;
  at::Tensor Index(const at::Tensor& local) const;

  int64_t numel_ = 0;
  std::vector<Range>
      runs_;  // contiguous pieces of the local tensor; at most two for a box that is no run
  bool is_box_ = false;
  Shape local_shape_;
  Ranges box_;
};

}  // namespace lins
