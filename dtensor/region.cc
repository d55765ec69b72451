#include "dtensor/region.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "placement/redistribution.h"

namespace lins {
namespace {

// Appends [begin, end), joined to the last run where they touch.
void Append(std::vector<Range>& runs, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!runs.empty() && runs.back().second == begin) {
    runs.back().second = end;
  } else {
    runs.emplace_back(begin, end);
  }
}

// Visits the rows (runs along the last dimension) of a box within a tensor of `shape`:
// fn(first element's row-major index in the tensor, length).
template <typename Fn>
void ForEachRow(const Shape& shape, const Ranges& box, Fn fn) {
  const size_t n = shape.size();
  for (const Range& r : box) {
    if (r.first >= r.second) return;
  }
  if (n == 0) return fn(0, 1);
  Shape at;
  for (const Range& r : box) at.push_back(r.first);
  while (true) {
    int64_t index = 0;
    for (size_t d = 0; d < n; ++d) index = index * shape[d] + at[d];
    fn(index, box[n - 1].second - box[n - 1].first);
    size_t d = n - 1;
    while (d-- > 0) {
      if (++at[d] < box[d].second) break;
      at[d] = box[d].first;
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

// The smallest number of runs: dimensions that the box spans whole join their rows.
void BoxRuns(const Shape& local, const Ranges& box, std::vector<Range>& runs) {
  ForEachRow(local, box, [&](int64_t at, int64_t len) {
    if (runs.size() < 2) Append(runs, at, at + len);
  });
}

}  // namespace

Region Region::Common(const Layout& x, int64_t a, const Layout& y, int64_t b) {
  Region out;
  const Ranges p = x.RangesOf(a), q = y.RangesOf(b);
  out.local_shape_ = x.LocalShape(a);
  if (!x.IsFlatOrOwned() && !y.IsFlatOrOwned()) {
    out.is_box_ = true;
    out.numel_ = 1;
    for (size_t d = 0; d < p.size(); ++d) {
      const int64_t begin = std::max(p[d].first, q[d].first);
      const int64_t end = std::max(begin, std::min(p[d].second, q[d].second));
      out.box_.push_back({begin - p[d].first, end - p[d].first});
      out.numel_ *= end - begin;
    }
    if (out.numel_ > 0) BoxRuns(out.local_shape_, out.box_, out.runs_);
    return out;
  }
  if (x.IsFlatOrOwned()) {
    const int64_t base = p[0].first;
    const auto add = [&](int64_t begin, int64_t end) {
      begin = std::max(begin, p[0].first);
      end = std::min(end, p[0].second);
      if (begin < end) Append(out.runs_, begin - base, end - base);
    };
    if (y.IsFlatOrOwned()) {
      add(q[0].first, q[0].second);
    } else {
      ForEachRow(y.shape(), q, [&](int64_t at, int64_t len) { add(at, at + len); });
    }
  } else {
    int64_t local = 0;  // rows of the box lie one after another in the local tensor
    ForEachRow(x.shape(), p, [&](int64_t at, int64_t len) {
      const int64_t begin = std::max(at, q[0].first), end = std::min(at + len, q[0].second);
      Append(out.runs_, local + begin - at, local + end - at);
      local += len;
    });
  }
  for (const Range& r : out.runs_) out.numel_ += r.second - r.first;
  return out;
}

at::Tensor Region::BoxView(const at::Tensor& local) const {
  at::Tensor view = local;
  for (size_t d = 0; d < box_.size(); ++d) {
    view = view.narrow(d, box_[d].first, box_[d].second - box_[d].first);
  }
  return view;
}

at::Tensor Region::Index(const at::Tensor& local) const {
  std::vector<at::Tensor> parts;
  for (const Range& r : runs_) {
    parts.push_back(
        at::arange(r.first, r.second, at::TensorOptions().dtype(at::kLong).device(local.device())));
  }
  return at::cat(parts);
}

void Region::CopyRuns(const at::Tensor& local, const at::Tensor& flat, bool out) const {
  const auto size = static_cast<int64_t>(local.element_size());
  char* spread = static_cast<char*>(local.data_ptr());
  char* packed = static_cast<char*>(flat.data_ptr());
  for (const Range& r : runs_) {
    const int64_t bytes = (r.second - r.first) * size;
    char* part = spread + r.first * size;
    std::memcpy(out ? packed : part, out ? part : packed, bytes);
    packed += bytes;
  }
}

void Region::Extract(const at::Tensor& local, const at::Tensor& flat) const {
  if (numel_ == 0) return;
  if (IsRun()) {
    flat.copy_(local.view(-1).narrow(0, Begin(), numel_));
  } else if (is_box_) {
    const at::Tensor box = BoxView(local);
    flat.view(box.sizes()).copy_(box);
  } else if (local.is_cpu()) {
    CopyRuns(local, flat, /*out=*/true);
  } else {
    flat.copy_(local.view(-1).index_select(0, Index(local)));
  }
}

void Region::Insert(const at::Tensor& local, const at::Tensor& flat) const {
  if (numel_ == 0) return;
  if (IsRun()) {
    local.view(-1).narrow(0, Begin(), numel_).copy_(flat);
  } else if (is_box_) {
    const at::Tensor box = BoxView(local);
    box.copy_(flat.view(box.sizes()));
  } else if (local.is_cpu()) {
    CopyRuns(local, flat, /*out=*/false);
  } else {
    local.view(-1).index_copy_(0, Index(local), flat);
  }
}

}  // namespace lins
