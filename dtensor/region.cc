#include "dtensor/region.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

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

// Bytes that are worth a thread of their own, where torch has several.
constexpr int64_t kTask = 256 * 1024;

void CopyBytes(char* to, const char* from, int64_t bytes) {
  switch (bytes) {  // rows of one element
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
  }
  if (bytes < 2 * kTask) {
    std::memcpy(to, from, bytes);
    return;
  }
  at::parallel_for(0, bytes, kTask, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, end - begin);
  });
}

const char* Data(const at::Tensor& t, int64_t at) {
  return static_cast<const char*>(t.const_data_ptr()) + at * static_cast<int64_t>(t.element_size());
}

char* MutableData(const at::Tensor& t, int64_t at) {
  return static_cast<char*>(t.mutable_data_ptr()) + at * static_cast<int64_t>(t.element_size());
}

}  // namespace

Region Region::Common(const Layout& x, int64_t a, const Layout& y, int64_t b) {
  Region out;
  const Ranges p = x.RangesOf(a), q = y.RangesOf(b);
  if (!x.IsFlatOrOwned() && !y.IsFlatOrOwned()) {
    out.numel_ = 1;
    Ranges box;
    for (size_t d = 0; d < p.size(); ++d) {
      const int64_t begin = std::max(p[d].first, q[d].first);
      const int64_t end = std::max(begin, std::min(p[d].second, q[d].second));
      box.push_back({begin - p[d].first, end - p[d].first});
      out.numel_ *= end - begin;
    }
    if (out.numel_ > 0) out.SetBox(x.LocalShape(a), box);
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

void Region::SetBox(const Shape& local, const Ranges& box) {
  // Dimensions that the box spans whole join their rows into one run, and so do those that follow
  // one another without a gap.
  int64_t begin = 0, length = 1, stride = 1;
  for (size_t d = box.size(); d-- > 0; stride *= local[d]) {
    const int64_t n = box[d].second - box[d].first;
    begin += box[d].first * stride;
    if (n == 1) continue;
    if (repeats_.empty() && length == stride) {
      length *= n;
    } else if (!repeats_.empty() && repeats_[0].step * repeats_[0].count == stride) {
      repeats_[0].count *= n;
    } else {
      repeats_.insert(repeats_.begin(), {n, stride});
    }
  }
  for (const Repeat& r : repeats_) rows_ *= r.count;
  runs_ = {{begin, begin + length}};
}

template <typename Fn>
void Region::ForEachRun(int64_t size, Fn fn) const {
  if (repeats_.empty()) {
    int64_t done = 0;
    for (const Range& r : runs_) {
      fn(r.first, r.second - r.first, done);
      done += r.second - r.first;
    }
    return;
  }
  const int64_t length = runs_[0].second - runs_[0].first;
  const auto rows = [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int64_t begin = runs_[0].first, left = row;
      for (size_t i = repeats_.size(); i-- > 0; left /= repeats_[i].count) {
        begin += left % repeats_[i].count * repeats_[i].step;
        if (left < repeats_[i].count) break;
      }
      fn(begin, length, row * length);
    }
  };
  if (numel_ * size < 2 * kTask) return rows(0, rows_);
  at::parallel_for(0, rows_, std::max<int64_t>(1, kTask / (length * size)), rows);
}

at::Tensor Region::BoxView(const at::Tensor& local) const {
  std::vector<int64_t> sizes, strides;
  for (const Repeat& r : repeats_) {
    sizes.push_back(r.count);
    strides.push_back(r.step);
  }
  sizes.push_back(runs_[0].second - runs_[0].first);
  strides.push_back(1);
  return local.view(-1).as_strided(sizes, strides, local.storage_offset() + Begin());
}

at::Tensor Region::Index(const at::Tensor& local) const {
  std::vector<at::Tensor> parts;
  ForEachRun(1, [&](int64_t begin, int64_t n, int64_t) {
    parts.push_back(
        at::arange(begin, begin + n, at::TensorOptions().dtype(at::kLong).device(local.device())));
  });
  return at::cat(parts);
}

void Region::Extract(const at::Tensor& local, const at::Tensor& flat, int64_t at) const {
  if (numel_ == 0) return;
  if (local.is_cpu()) {
    const int64_t size = local.element_size();
    const char* from = Data(local, 0);
    char* to = MutableData(flat, at);
    ForEachRun(size, [&](int64_t begin, int64_t n, int64_t done) {
      CopyBytes(to + done * size, from + begin * size, n * size);
    });
    return;
  }
  const at::Tensor target = flat.view(-1).narrow(0, at, numel_);
  if (IsRun()) {
    target.copy_(local.view(-1).narrow(0, Begin(), numel_));
  } else if (!repeats_.empty()) {
    const at::Tensor box = BoxView(local);
    target.view(box.sizes()).copy_(box);
  } else {
    target.copy_(local.view(-1).index_select(0, Index(local)));
  }
}

void Region::Insert(const at::Tensor& local, const at::Tensor& flat, int64_t at) const {
  if (numel_ == 0) return;
  if (local.is_cpu()) {
    const int64_t size = local.element_size();
    char* to = MutableData(local, 0);
    const char* from = Data(flat, at);
    ForEachRun(size, [&](int64_t begin, int64_t n, int64_t done) {
      CopyBytes(to + begin * size, from + done * size, n * size);
    });
    return;
  }
  const at::Tensor source = flat.view(-1).narrow(0, at, numel_);
  if (IsRun()) {
    local.view(-1).narrow(0, Begin(), numel_).copy_(source);
  } else if (!repeats_.empty()) {
    const at::Tensor box = BoxView(local);
    box.copy_(source.view(box.sizes()));
  } else {
    local.view(-1).index_copy_(0, Index(local), source);
  }
}

void CopyContiguous(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  if (from.is_cpu()) {
    CopyBytes(MutableData(to, 0), Data(from, 0), static_cast<int64_t>(from.nbytes()));
  } else {
    to.view(-1).copy_(from.view(-1));
  }
}

}  // namespace lins
