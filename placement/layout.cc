#include "placement/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/error.h"

namespace lins {

int64_t Numel(const Shape& shape) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

std::string ShapeToString(const Shape& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

std::string Describe(const Layout& layout) {
  return absl::StrCat(layout.ToString(), " of ", ShapeToString(layout.shape()), " on ",
                      layout.mesh().ToString());
}

std::string ToString(const Placement& placement) {
  if (const auto* s = std::get_if<Shard>(&placement)) return absl::StrCat("Shard(", s->dim, ")");
  if (const auto* p = std::get_if<Partial>(&placement)) {
    return absl::StrCat("Partial('", ReduceOpName(p->op), "')");
  }
  return "Replicate()";
}

Range Chunk(Range range, int64_t k, int64_t index) {
  const auto [begin, end] = range;
  const int64_t size = (end - begin + k - 1) / k;
  return {std::min(begin + index * size, end), std::min(begin + (index + 1) * size, end)};
}

Layout Layout::Replicated(Shape shape, const Mesh& mesh) {
  return Layout(Terms(), std::move(shape), mesh);
}

Layout Layout::WithTerms(Terms terms) const {
  auto layout = Create(std::move(terms), shape_, mesh_);
  LINS_CHECK(layout.ok(), layout.status().message());
  return *std::move(layout);
}

namespace {

// F(axes) without a window: offset 0, total = numel rounded up to a multiple of the group.
int64_t DefaultTotal(int64_t numel, const Axes& axes) {
  const int64_t k = Mesh::GroupSize(axes);
  return (numel + k - 1) / k * k;
}

absl::Status CheckShards(const Terms& terms, const Shape& shape) {
  for (size_t i = 0; i < terms.shards.size(); ++i) {
    const int dim = terms.shards[i].dim;
    if (dim < 0 || dim >= static_cast<int>(shape.size())) {
      return InvalidArgument("S", dim, " is outside the tensor's dimensions: shape ",
                             ShapeToString(shape), " has ", shape.size());
    }
    if (terms.shards[i].axes.empty()) return InvalidArgument("S", dim, "() names no axis");
    if (i > 0 && terms.shards[i - 1].dim == dim) {
      return InvalidArgument("S", dim,
                             " appears twice: write the axes in one term, major to minor");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFlat(const FlatTerm& f, const Shape& shape) {
  const int64_t k = Mesh::GroupSize(f.axes);
  if (f.total < 0 || f.total % k != 0) {
    return InvalidArgument("F's total ", f.total, " is not a multiple of its group of ", k);
  }
  if (f.offset < 0 || f.offset + Numel(shape) > f.total) {
    return InvalidArgument("F's window [", f.offset, ", ", f.offset + Numel(shape), ") of shape ",
                           ShapeToString(shape), " does not fit its total of ", f.total);
  }
  return absl::OkStatus();
}

// Reads a layout term by term; errors point at the term or character that is wrong.
class Parser {
 public:
  Parser(absl::string_view text, const Shape& shape, const Mesh& mesh)
      : in_(text), shape_(shape), mesh_(mesh) {}

  absl::StatusOr<Terms> Run() {
    in_.SkipSpaces();
    if (in_.AtEnd()) return in_.Error("an empty layout: write R for replicated");
    if (in_.Peek() == 'R') {
      in_.Take("R");
      in_.SkipSpaces();
      if (!in_.AtEnd()) return in_.Error("R stands alone: axes that no term names are replicated");
      return Terms();
    }
    bool separated = true;
    while (!in_.AtEnd()) {
      if (!separated) return in_.Error("expected a space between terms");
      LINS_RETURN_IF_ERROR(Term());
      separated = in_.SkipSpaces();
    }
    return terms_;
  }

 private:
  absl::Status Term() {
    const size_t at = in_.pos();
    LINS_RETURN_IF_ERROR(TermBody(at));
    Axes used;
    auto add = [&used](const Axes& axes) { used.insert(used.end(), axes.begin(), axes.end()); };
    for (const ShardTerm& t : terms_.shards) add(t.axes);
    for (const PartialTerm& t : terms_.partials) add(t.axes);
    if (terms_.flat) add(terms_.flat->axes);
    if (terms_.owned) add(terms_.owned->axes);
    if (absl::Status s = mesh_.Validate(used); !s.ok()) return in_.ErrorAt(at, s.message());
    const bool flat_or_owned = terms_.flat || terms_.owned;
    if (flat_or_owned && (!terms_.shards.empty() || (terms_.flat && terms_.owned))) {
      return in_.ErrorAt(at, "a layout has S terms, or one F, or one O, never a mixture");
    }
    return absl::OkStatus();
  }

  absl::Status TermBody(size_t at) {
    if (in_.Take("S")) return ShardBody(at);
    if (in_.Take("F")) return FlatBody(at);
    if (in_.Take("O")) return OwnedBody(at);
    if (in_.Take("+")) return PartialBody(at);
    return in_.Error("expected S<dim>(axes), F(axes), O(axes; owner), +op(axes) or R");
  }

  absl::StatusOr<Axes> OpenAxes() {
    LINS_RETURN_IF_ERROR(in_.Expect("("));
    return mesh_.ScanAxes(in_);
  }

  absl::Status ShardBody(size_t at) {
    LINS_ASSIGN_OR_RETURN(const int64_t dim, in_.Integer("the dimension to shard"));
    ShardTerm term{static_cast<int>(std::min<int64_t>(dim, 1 << 20)), {}};
    LINS_ASSIGN_OR_RETURN(term.axes, OpenAxes());
    LINS_RETURN_IF_ERROR(in_.Expect(")"));
    terms_.shards.push_back(std::move(term));
    std::stable_sort(terms_.shards.begin(), terms_.shards.end(),
                     [](const auto& a, const auto& b) { return a.dim < b.dim; });
    if (absl::Status s = CheckShards(terms_, shape_); !s.ok()) return in_.ErrorAt(at, s.message());
    return absl::OkStatus();
  }

  absl::Status FlatBody(size_t at) {
    if (terms_.flat) return in_.ErrorAt(at, "F appears twice");
    FlatTerm term{{}, 0, 0};
    LINS_ASSIGN_OR_RETURN(term.axes, OpenAxes());
    term.total = DefaultTotal(Numel(shape_), term.axes);
    if (in_.Take(";")) {
      LINS_ASSIGN_OR_RETURN(term.offset, in_.Integer("the offset of the window"));
      LINS_RETURN_IF_ERROR(in_.Expect("/"));
      LINS_ASSIGN_OR_RETURN(term.total, in_.Integer("the total of the buffer"));
    }
    LINS_RETURN_IF_ERROR(in_.Expect(")"));
    if (absl::Status s = CheckFlat(term, shape_); !s.ok()) return in_.ErrorAt(at, s.message());
    terms_.flat = std::move(term);
    return absl::OkStatus();
  }

  absl::Status OwnedBody(size_t at) {
    if (terms_.owned) return in_.ErrorAt(at, "O appears twice");
    OwnedTerm term{{}, 0};
    LINS_ASSIGN_OR_RETURN(term.axes, OpenAxes());
    LINS_RETURN_IF_ERROR(in_.Expect(";"));
    in_.SkipSpaces();
    const size_t owner_at = in_.pos();
    LINS_ASSIGN_OR_RETURN(term.owner, in_.Integer("the owner's index"));
    if (term.owner >= Mesh::GroupSize(term.axes)) {
      return in_.ErrorAt(owner_at, absl::StrCat("owner ", term.owner, " is outside its group of ",
                                                Mesh::GroupSize(term.axes)));
    }
    LINS_RETURN_IF_ERROR(in_.Expect(")"));
    terms_.owned = std::move(term);
    return absl::OkStatus();
  }

  absl::Status PartialBody(size_t at) {
    const absl::string_view name = in_.Name();
    const auto op = ParseReduceOp(name);
    if (!op) {
      return in_.ErrorAt(at, absl::StrCat("unknown reduction '", name,
                                          "': sum, avg, min, max, product, band, bor or bxor"));
    }
    LINS_ASSIGN_OR_RETURN(Axes axes, OpenAxes());
    LINS_RETURN_IF_ERROR(in_.Expect(")"));
    terms_.partials.push_back({*op, std::move(axes)});
    return absl::OkStatus();
  }

  Scanner in_;
  const Shape& shape_;
  const Mesh& mesh_;
  Terms terms_;
};

}  // namespace

absl::StatusOr<Layout> Layout::Parse(absl::string_view notation, Shape shape, const Mesh& mesh) {
  LINS_ASSIGN_OR_RETURN(Terms terms, Parser(notation, shape, mesh).Run());
  return Create(std::move(terms), std::move(shape), mesh);
}

absl::StatusOr<Layout> Layout::FromPlacements(const std::vector<Placement>& placements, Shape shape,
                                              const Mesh& mesh) {
  if (static_cast<int>(placements.size()) != mesh.ndim()) {
    return InvalidArgument(placements.size(), " placements for ", mesh.ToString(),
                           ": give one per axis, ", mesh.ndim());
  }
  Terms terms;
  for (int i = 0; i < mesh.ndim(); ++i) {
    const SubAxis axis{i, mesh.shape()[i], 1};
    if (const auto* s = std::get_if<Shard>(&placements[i])) {
      const int ndim = static_cast<int>(shape.size());
      const int dim = s->dim < 0 ? s->dim + ndim : s->dim;
      if (dim < 0 || dim >= ndim) {
        return InvalidArgument("Shard(", s->dim, ") is outside the tensor's dimensions: shape ",
                               ShapeToString(shape), " has ", ndim);
      }
      auto it = std::find_if(terms.shards.begin(), terms.shards.end(),
                             [&](const ShardTerm& t) { return t.dim == dim; });
      if (it == terms.shards.end()) it = terms.shards.insert(it, ShardTerm{dim, {}});
      it->axes.push_back(axis);
    } else if (const auto* p = std::get_if<Partial>(&placements[i])) {
      terms.partials.push_back({p->op, {axis}});
    }
  }
  return Create(std::move(terms), std::move(shape), mesh);
}

absl::StatusOr<Layout> Layout::Create(Terms terms, Shape shape, const Mesh& mesh) {
  for (int64_t s : shape) {
    if (s < 0) return InvalidArgument("negative size in shape ", ShapeToString(shape));
  }
  std::sort(terms.shards.begin(), terms.shards.end(),
            [](const auto& a, const auto& b) { return a.dim < b.dim; });
  // Partial axes have no order: one term for each operation, its axes merged where they touch.
  absl::InlinedVector<PartialTerm, 1> partials;
  for (const PartialTerm& t : terms.partials) {
    auto it = std::find_if(partials.begin(), partials.end(),
                           [&](const PartialTerm& p) { return p.op == t.op; });
    if (it == partials.end()) {
      partials.push_back(t);
    } else {
      it->axes.insert(it->axes.end(), t.axes.begin(), t.axes.end());
    }
  }
  terms.partials = std::move(partials);
  Layout layout(std::move(terms), std::move(shape), mesh);
  Terms& t = layout.terms_;
  Axes used = layout.SplitAxes();
  const Axes partial = layout.PartialAxes();
  used.insert(used.end(), partial.begin(), partial.end());
  LINS_RETURN_IF_ERROR(mesh.Validate(used));
  LINS_RETURN_IF_ERROR(CheckShards(t, layout.shape_));
  if ((t.flat || t.owned) && (!t.shards.empty() || (t.flat && t.owned))) {
    return InvalidArgument("a layout has S terms, or one F, or one O, never a mixture");
  }
  if (t.flat) LINS_RETURN_IF_ERROR(CheckFlat(*t.flat, layout.shape_));
  if (t.owned && (t.owned->owner < 0 || t.owned->owner >= Mesh::GroupSize(t.owned->axes))) {
    return InvalidArgument("owner ", t.owned->owner, " is outside its group of ",
                           Mesh::GroupSize(t.owned->axes));
  }
  for (PartialTerm& p : t.partials) p.axes = Canonical(mesh, p.axes);
  // A part of size 1 leaves nothing to reduce.
  t.partials.erase(std::remove_if(t.partials.begin(), t.partials.end(),
                                  [](const PartialTerm& p) { return p.axes.empty(); }),
                   t.partials.end());
  std::sort(t.partials.begin(), t.partials.end(),
            [](const PartialTerm& a, const PartialTerm& b) { return a.op < b.op; });
  return layout;
}

absl::StatusOr<std::vector<Placement>> Layout::Placements() const {
  const auto refuse = [this](absl::string_view why) {
    return InvalidArgument("layout ", ToString(), " has no placement list: ", why);
  };
  if (IsFlatOrOwned()) return refuse("F and O are not placements of single axes");
  std::vector<Placement> out(mesh_.ndim(), Replicate());
  for (const ShardTerm& t : terms_.shards) {
    for (size_t i = 0; i < t.axes.size(); ++i) {
      if (t.axes[i].size != mesh_.shape()[t.axes[i].axis])
        return refuse("it splits over part of an axis");
      if (i > 0 && t.axes[i].axis < t.axes[i - 1].axis) {
        return refuse("a dimension is split in another order than the mesh's");
      }
      out[t.axes[i].axis] = Shard{t.dim};
    }
  }
  for (const PartialTerm& t : terms_.partials) {
    for (const SubAxis& a : t.axes) {
      if (a.size != mesh_.shape()[a.axis]) return refuse("it is partial over part of an axis");
      out[a.axis] = Partial{t.op};
    }
  }
  return out;
}

int64_t Layout::numel() const { return Numel(shape_); }

Ranges Layout::RangesOf(int64_t rank) const {
  const int64_t n = numel();
  if (terms_.flat) {
    const FlatTerm& f = *terms_.flat;
    const int64_t slot = f.total / Mesh::GroupSize(f.axes);
    const int64_t begin = mesh_.IndexInGroup(f.axes, rank) * slot - f.offset;
    const Range r{std::max<int64_t>(begin, 0), std::min(begin + slot, n)};
    return {r.first < r.second ? r : Range{n, n}};
  }
  if (terms_.owned) {
    const bool owner = mesh_.IndexInGroup(terms_.owned->axes, rank) == terms_.owned->owner;
    return {owner ? Range{0, n} : Range{n, n}};
  }
  Ranges out;
  for (int64_t s : shape_) out.push_back({0, s});
  for (const ShardTerm& t : terms_.shards) {
    Range& r = out[t.dim];
    for (const SubAxis& a : t.axes) r = Chunk(r, a.size, mesh_.IndexInGroup({&a, 1}, rank));
    if (r.first == r.second) r = {shape_[t.dim], shape_[t.dim]};
  }
  return out;
}

Shape Layout::LocalShape(int64_t rank) const {
  const Ranges ranges = RangesOf(rank);
  if (terms_.owned) {
    const bool owner = mesh_.IndexInGroup(terms_.owned->axes, rank) == terms_.owned->owner;
    return owner ? shape_ : Shape{0};
  }
  Shape out;
  for (const Range& r : ranges) out.push_back(r.second - r.first);
  return out;
}

int64_t Layout::LocalNumel(int64_t rank) const { return Numel(LocalShape(rank)); }

int64_t Layout::MaxLocalNumel() const {
  int64_t most = 0;
  if (terms_.owned) return numel();
  if (terms_.flat) {
    for (int64_t i = 0; i < Mesh::GroupSize(terms_.flat->axes); ++i) {
      most = std::max(most, LocalNumel(mesh_.Peer(terms_.flat->axes, 0, i)));
    }
    return most;
  }
  return LocalNumel(0);  // the first chunk of every split is its largest
}

Axes Layout::SplitAxes() const {
  Axes out;
  const auto add = [&out](const Axes& axes) { out.insert(out.end(), axes.begin(), axes.end()); };
  for (const ShardTerm& t : terms_.shards) add(t.axes);
  if (terms_.flat) add(terms_.flat->axes);
  if (terms_.owned) add(terms_.owned->axes);
  return out;
}

Axes Layout::PartialAxes() const {
  Axes out;
  for (const PartialTerm& t : terms_.partials) out.insert(out.end(), t.axes.begin(), t.axes.end());
  return out;
}

std::string Layout::ToString() const {
  std::vector<std::string> out;
  for (const ShardTerm& t : terms_.shards) {
    out.push_back(absl::StrCat("S", t.dim, "(", mesh_.AxesToString(t.axes), ")"));
  }
  if (const auto& f = terms_.flat) {
    std::string window;
    if (f->offset != 0 || f->total != DefaultTotal(numel(), f->axes)) {
      window = absl::StrCat("; ", f->offset, "/", f->total);
    }
    out.push_back(absl::StrCat("F(", mesh_.AxesToString(f->axes), window, ")"));
  }
  if (const auto& o = terms_.owned) {
    out.push_back(absl::StrCat("O(", mesh_.AxesToString(o->axes), "; ", o->owner, ")"));
  }
  for (const PartialTerm& t : terms_.partials) {
    out.push_back(absl::StrCat("+", ReduceOpName(t.op), "(", mesh_.AxesToString(t.axes), ")"));
  }
  return out.empty() ? "R" : absl::StrJoin(out, " ");
}

}  // namespace lins
