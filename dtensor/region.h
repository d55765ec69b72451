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
  bool IsRun() const { return rows_ * runs_.size() <= 1; }
  int64_t Begin() const { return runs_.empty() ? 0 : runs_[0].first; }

  // Copies the elements out of the contiguous `local` into `flat`, from its element `at` on, or
  // back. The two do not overlap. Allocates nothing where they are in the CPU's memory.
  void Extract(const at::Tensor& local, const at::Tensor& flat, int64_t at = 0) const;
  void Insert(const at::Tensor& local, const at::Tensor& flat, int64_t at = 0) const;

 private:
  // fn(begin in the local tensor, elements, place in the row-major order of the region), for
  // elements of `size` bytes; from several threads where there is much to do.
  template <typename Fn>
  void ForEachRun(int64_t size, Fn fn) const;
  void SetBox(const Shape& local, const Ranges& box);
  // For other devices: a strided view of a box, or index numbers.
  at::Tensor BoxView(const at::Tensor& local) const;
  at::Tensor Index(const at::Tensor& local) const;

  int64_t numel_ = 0;
  std::vector<Range> runs_;  // contiguous pieces of the local tensor; of a box the first one
  // A box repeats its first run at steps along some dimensions, outermost first.
  struct Repeat {
    int64_t count, step;
  };
  absl::InlinedVector<Repeat, 4> repeats_;
  int64_t rows_ = 1;  // product of the counts
};

// Copies the elements of one contiguous tensor to another of as many.
void CopyContiguous(const at::Tensor& to, const at::Tensor& from);

}  // namespace lins
