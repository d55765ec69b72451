#include "mesh/mesh.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"

namespace lins {
namespace {

bool IsName(absl::string_view text) {
  Scanner in(text);
  return !text.empty() && in.Name().size() == text.size();
}

}  // namespace

absl::StatusOr<Mesh> Mesh::Create(std::vector<int64_t> shape, std::vector<std::string> axes) {
  if (shape.empty() || shape.size() != axes.size()) {
    return InvalidArgument("a mesh needs one name per dimension: got shape (",
                           absl::StrJoin(shape, ", "), ") and axes (", absl::StrJoin(axes, ", "),
                           ")");
  }
  auto data = std::make_shared<Data>();
  data->size = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 1) {
      return InvalidArgument("mesh axis '", axes[i], "' has size ", shape[i],
                             ", must be at least 1");
    }
    if (!IsName(axes[i])) {
      return InvalidArgument("mesh axis name '", axes[i],
                             "' must be letters, digits and '_', not beginning with a digit");
    }
    if (std::count(axes.begin(), axes.end(), axes[i]) > 1) {
      return InvalidArgument("mesh axis '", axes[i], "' appears twice in (",
                             absl::StrJoin(axes, ", "), ")");
    }
    if (data->size > (int64_t{1} << 40) / shape[i]) {
      return InvalidArgument("mesh (", absl::StrJoin(shape, ", "), ") has more than 2^40 ranks");
    }
    data->size *= shape[i];
  }
  data->strides.assign(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) data->strides[i - 1] = data->strides[i] * shape[i];
  data->shape = std::move(shape);
  data->axes = std::move(axes);
  return Mesh(std::move(data));
}

std::string Mesh::ToString() const {
  std::string out = "Mesh(";
  for (int i = 0; i < ndim(); ++i) {
    absl::StrAppend(&out, i ? ", " : "", axes()[i], "=", shape()[i]);
  }
  return out + ")";
}

std::vector<int64_t> Mesh::Coordinate(int64_t rank) const {
  LINS_CHECK(rank >= 0 && rank < size(), "rank ", rank, " of ", ToString());
  std::vector<int64_t> c(ndim());
  for (int i = 0; i < ndim(); ++i) c[i] = rank / data_->strides[i] % shape()[i];
  return c;
}

Axes Mesh::AllAxes() const {
  Axes all;
  for (int i = 0; i < ndim(); ++i) all.push_back({i, shape()[i], 1});
  return all;
}

absl::StatusOr<SubAxis> Mesh::WholeAxis(absl::string_view name) const {
  for (int i = 0; i < ndim(); ++i) {
    if (axes()[i] == name) return SubAxis{i, shape()[i], 1};
  }
  return InvalidArgument("unknown axis '", name, "': ", ToString(), " has ",
                         absl::StrJoin(axes(), ", "));
}

absl::StatusOr<Axes> Mesh::ParseAxes(absl::string_view text) const {
  Scanner in(text);
  in.SkipSpaces();
  if (in.AtEnd()) return Axes();
  LINS_ASSIGN_OR_RETURN(Axes axes, ScanAxes(in));
  in.SkipSpaces();
  if (!in.AtEnd()) return in.Error("unexpected text after the axes");
  return axes;
}

absl::StatusOr<Axes> Mesh::ScanAxes(Scanner& in) const {
  Axes out;
  do {
    in.SkipSpaces();
    const size_t at = in.pos();
    const absl::string_view name = in.Name();
    if (name.empty()) {
      return in.ErrorAt(
          at, absl::StrCat("expected an axis: ", ToString(), " has ", absl::StrJoin(axes(), ", ")));
    }
    absl::StatusOr<SubAxis> axis = WholeAxis(name);
    if (!axis.ok()) return in.ErrorAt(at, axis.status().message());
    if (in.Take(":")) {
      LINS_ASSIGN_OR_RETURN(axis->size, in.Integer("the size of a sub-axis"));
      if (in.Take("@")) {
        LINS_ASSIGN_OR_RETURN(axis->stride, in.Integer("the stride of a sub-axis"));
      }
    }
    out.push_back(*axis);
    if (absl::Status valid = Validate(out); !valid.ok()) return in.ErrorAt(at, valid.message());
  } while (in.Take(","));
  return out;
}

std::string Mesh::AxesToString(absl::Span<const SubAxis> list) const {
  return absl::StrJoin(list, ",", [this](std::string* out, const SubAxis& a) {
    absl::StrAppend(out, axes()[a.axis]);
    if (a.size == shape()[a.axis]) return;
    absl::StrAppend(out, ":", a.size);
    if (a.stride != 1) absl::StrAppend(out, "@", a.stride);
  });
}

bool Overlap(const SubAxis& a, const SubAxis& b) {
  if (a.axis != b.axis || a.size == 1 || b.size == 1) return a == b;
  const auto& [low, high] = a.stride <= b.stride ? std::tie(a, b) : std::tie(b, a);
  return high.stride % (low.stride * low.size) != 0;
}

absl::Status Mesh::Validate(absl::Span<const SubAxis> list) const {
  for (size_t i = 0; i < list.size(); ++i) {
    const SubAxis& a = list[i];
    if (a.axis < 0 || a.axis >= ndim()) {
      return InvalidArgument("axis number ", a.axis, " is outside ", ToString());
    }
    const int64_t whole = shape()[a.axis];
    if (a.size < 1 || a.stride < 1 || a.size > whole || whole % a.size != 0 ||
        (whole / a.size) % a.stride != 0) {
      return InvalidArgument("sub-axis ", axes()[a.axis], ":", a.size, "@", a.stride,
                             " does not divide axis '", axes()[a.axis], "' of size ", whole,
                             ": size * stride must be a divisor of it");
    }
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(a, list[j])) {
        return InvalidArgument("axis '", axes()[a.axis],
                               "' is used twice: ", AxesToString({&list[j], 1}), " and ",
                               AxesToString({&a, 1}), " share coordinates");
      }
    }
  }
  return absl::OkStatus();
}

int64_t Mesh::GroupSize(absl::Span<const SubAxis> list) {
  int64_t n = 1;
  for (const SubAxis& a : list) n *= a.size;
  return n;
}

int64_t Mesh::SubCoordinate(const SubAxis& a, int64_t rank) const {
  return rank / (data_->strides[a.axis] * a.stride) % a.size;
}

int64_t Mesh::IndexInGroup(absl::Span<const SubAxis> list, int64_t rank) const {
  int64_t index = 0;
  for (const SubAxis& a : list) index = index * a.size + SubCoordinate(a, rank);
  return index;
}

int64_t Mesh::Peer(absl::Span<const SubAxis> list, int64_t rank, int64_t index) const {
  for (size_t i = list.size(); i-- > 0;) {
    const SubAxis& a = list[i];
    rank += (index % a.size - SubCoordinate(a, rank)) * data_->strides[a.axis] * a.stride;
    index /= a.size;
  }
  return rank;
}

std::vector<int64_t> Mesh::Group(absl::Span<const SubAxis> list, int64_t rank) const {
  std::vector<int64_t> group(GroupSize(list));
  for (size_t i = 0; i < group.size(); ++i) group[i] = Peer(list, rank, i);
  return group;
}

std::vector<std::vector<int64_t>> Mesh::Groups(absl::Span<const SubAxis> list) const {
  std::vector<std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < size(); ++rank) {
    if (IndexInGroup(list, rank) == 0) groups.push_back(Group(list, rank));
  }
  return groups;
}

Axes Canonical(const Mesh& mesh, absl::Span<const SubAxis> axes) {
  Axes sorted;
  for (const SubAxis& a : axes) {
    if (a.size > 1 || mesh.shape()[a.axis] == 1) sorted.push_back(a);
  }
  std::sort(sorted.begin(), sorted.end(), [](const SubAxis& a, const SubAxis& b) {
    return std::tuple(a.axis, -a.stride) < std::tuple(b.axis, -b.stride);
  });
  Axes out;
  for (const SubAxis& a : sorted) {
    if (!out.empty() && out.back().axis == a.axis && out.back().stride == a.stride * a.size) {
      out.back() = {a.axis, out.back().size * a.size, a.stride};
    } else {
      out.push_back(a);
    }
  }
  return out;
}

Axes WithoutSingles(const Axes& axes) {
  Axes out;
  for (const SubAxis& a : axes) {
    if (a.size > 1) out.push_back(a);
  }
  return out;
}

Axes Subtract(const Mesh& mesh, absl::Span<const SubAxis> axes, absl::Span<const SubAxis> remove) {
  Axes rest = Canonical(mesh, axes);
  for (const SubAxis& r : Canonical(mesh, remove)) {
    for (size_t i = 0; i < rest.size(); ++i) {
      const SubAxis a = rest[i];
      if (a.axis != r.axis || r.stride < a.stride || r.stride * r.size > a.stride * a.size)
        continue;
      rest.erase(rest.begin() + i);
      const int64_t end = r.stride * r.size;
      if (end < a.stride * a.size) rest.push_back({a.axis, a.stride * a.size / end, end});
      if (r.stride > a.stride) rest.push_back({a.axis, r.stride / a.stride, a.stride});
      break;
    }
  }
  return Canonical(mesh, rest);
}

bool Contains(const Mesh& mesh, absl::Span<const SubAxis> axes, absl::Span<const SubAxis> inner) {
  const Axes whole = Canonical(mesh, axes);
  for (const SubAxis& r : Canonical(mesh, inner)) {
    const bool found = std::any_of(whole.begin(), whole.end(), [&](const SubAxis& a) {
      return a.axis == r.axis && r.stride >= a.stride && r.stride % a.stride == 0 &&
             (a.stride * a.size) % (r.stride * r.size) == 0;
    });
    if (!found) return false;
  }
  return true;
}

Axes Complement(const Mesh& mesh, absl::Span<const SubAxis> axes) {
  return Subtract(mesh, mesh.AllAxes(), axes);
}

}  // namespace lins
