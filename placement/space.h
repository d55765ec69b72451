// The layouts that a plan may pass through, in a compact form that the search can compare cheaply.
//
// Sub-axes become small numbers ("items") and sets of them masks. Atoms are the coarsest parts of
// the mesh's axes that tell apart everything source and destination name; items are the atoms, and
// the sub-axes of source and destination that consist of several. A split (S terms, F or O) is
// interned once, with what each rank holds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "placement/redistribution.h"

namespace lins {

using AxisMask = uint64_t;  // a set of atoms

// Memory for vectors of one number a rank, freed together.
class RankVectors {
 public:
  explicit RankVectors(int64_t ranks) : ranks_(ranks) {}
  ~RankVectors();
  RankVectors(const RankVectors&) = delete;
  int64_t* New();

 private:
  int64_t ranks_, left_ = 0;
  int64_t* next_ = nullptr;
  std::vector<std::unique_ptr<int64_t[]>> blocks_;
};

class PlanSpace {
 public:
  enum class Form : uint8_t { kBox, kFlat, kOwned };
  // S terms: a node of the tree of axis lists for each dimension. F: one node, and its window. O:
  // its term.
  struct Split {
    Form form = Form::kBox;
    int variant = 0;
    absl::InlinedVector<int, 4> nodes;
    AxisMask covers = 0;                             // atoms it divides over
    AxisMask blocks = 0;                             // atoms that nothing else may use
    int64_t most = 0;                                // elements on the fullest rank
    const int64_t* held = nullptr;                   // elements on each rank
    const int64_t *begin = nullptr, *end = nullptr;  // F and O: the range in the flattened elements
    // even_line(): its atoms and its items, plus one, major to minor, one a byte from the lowest
    // on.
    uint64_t line = 0, path = 0;
  };
  // Pending reductions: the atoms of each of ops().
  using Pending = absl::InlinedVector<AxisMask, 2>;

  PlanSpace(const Layout& src, const Layout& dst);

  const Mesh& mesh() const { return src_.mesh(); }
  int64_t ranks() const { return ranks_; }
  int64_t numel() const { return numel_; }
  RankVectors& vectors() { return vectors_; }

  const absl::InlinedVector<ReduceOp, 2>& ops() const { return ops_; }
  const Pending& src_pending() const { return src_pending_; }
  const Pending& dst_pending() const { return dst_pending_; }
  int src() const { return src_split_; }
  int dst() const { return dst_split_; }
  const Split& split(int id) const { return *splits_[id]; }
  // With its numbers for each rank, which split() has too unless even_line().
  const Split& Filled(int id);
  size_t splits() const { return splits_.size(); }

  // All splits are equal slots of one line of elements: one dimension that divides among all ranks,
  // and no owner. Counts then follow from the atoms alone.
  bool even_line() const { return even_line_; }
  // True when the parts that source and destination name fit into each other on every axis: then a
  // set of atoms is a set of sub-axes.
  bool chains() const { return chains_; }

  // All splits, in a fixed order. Beyond kManySplits, only over dimensions that source and
  // destination divide and the longest one.
  static constexpr size_t kManySplits = 3000;
  const std::vector<int>& All();
  // The splits that lengthen `id` by atoms of `within` (at least one), each with the atoms it adds.
  std::vector<std::pair<int, AxisMask>> Extensions(int id, AxisMask within);
  // True when `to` is `from` with more axes at the minor ends (or F or O made of a whole tensor).
  bool Extends(int from, int to) const;
  // What is left when `strip`'s atoms are taken off the minor ends; -1 if some remain in use.
  int Stripped(int id, AxisMask strip);

  // Elements that each rank holds under both.
  void Overlap(int x, int y, int64_t* out);
  // The same where that is one number on all ranks; -1 where ranks differ. For even_line().
  int64_t EvenOverlap(int x, int y) const;
  // Coordinates along the atoms of a set, in mesh order, as one number for each rank.
  void IndexIn(AxisMask atoms, int64_t* out) const;
  int64_t SizeOf(AxisMask atoms) const;
  AxisMask BlockedBy(AxisMask atoms) const;  // atoms that overlap one of the set

  // The kind and axes of the step between two splits; received: what each rank receives.
  StepKind MoveKind(int x, int y, const int64_t* received) const;
  Axes MoveAxes(StepKind kind, int x, int y) const;
  // How a cost model is told of the group that takes part: its size along the last axis, and along
  // all others.
  std::pair<int64_t, int64_t> MoveGroup(StepKind kind, int x, int y) const;
  std::pair<int64_t, int64_t> GroupOf(AxisMask atoms) const;
  // The kind of a move and the atoms over which ranks talk, read off the lists; a slice where
  // nothing is received. For even_line().
  std::pair<StepKind, AxisMask> LineMove(int x, int y) const;
  AxisMask Differing(int x, int y) const;  // atoms over which ranks talk to turn x into y
  Axes Added(int from, int to) const;      // what an extension adds, major to minor
  Axes ToAxes(AxisMask atoms) const;       // in mesh order, neighbours merged
  Layout ToLayout(int split, const Pending& pending) const;

 private:
  struct Node {  // a list of items, and the range (in a dimension) or index (F) it gives each rank
    int parent = -1, item = -1, dim = 0, depth = 0;
    int split = -1;       // the one of this node alone, for the first window of F
    AxisMask covers = 0;  // of all its items
    int64_t* begin = nullptr;
    int64_t* end = nullptr;
    absl::InlinedVector<int, 8> children;
  };
  struct Item {
    SubAxis axis;
    AxisMask covers, blocks;
  };
  using Key = std::tuple<int, absl::InlinedVector<int, 4>>;

  void AddItems();
  bool IsEvenLine() const;
  void FillNode(int id);
  void FillSplit(Split& s);
  const std::vector<int64_t>& Coordinates(int item) const;
  AxisMask AtomsOf(absl::Span<const SubAxis> axes) const;
  int ItemOf(const SubAxis& axis) const;
  int Child(int node, int item);
  int Intern(Form form, int variant, absl::InlinedVector<int, 4> nodes);
  int FromTerms(const Terms& terms);
  int Window(int64_t offset, int64_t total);
  int Owner(const OwnedTerm& term);
  bool WindowFits(const Split& s) const;
  void EnumerateBoxes(absl::Span<const int> dims);
  void EnumerateFlat(int window, int node, AxisMask used);
  // The items of a node below its ancestor `from`, major to minor.
  absl::InlinedVector<int, 6> Items(int node, int from = -1) const;
  int CommonAncestor(int a, int b) const;
  bool IsWhole(const Split& s) const;
  bool IsPermutation(const Split& x, const Split& y, const int64_t* received) const;

  const Layout src_, dst_;
  int64_t ranks_, numel_;
  RankVectors vectors_;
  std::vector<Item> items_;
  size_t atoms_ = 0;  // items_[0, atoms_) are atoms, in mesh order
  bool chains_ = true, even_line_ = false;
  mutable std::vector<std::vector<int64_t>> coordinates_;  // [item][rank], made on demand
  std::vector<Node> nodes_;                                // roots first: one a dimension, then F's
  std::vector<std::pair<int64_t, int64_t>> windows_;
  std::vector<OwnedTerm> owners_;
  std::vector<std::unique_ptr<Split>> splits_;
  absl::flat_hash_map<Key, int> ids_;
  absl::flat_hash_map<std::pair<int, int>, int64_t*> mixed_;  // elements in common of S and F or O
  std::vector<int> all_;
  absl::InlinedVector<ReduceOp, 2> ops_;
  Pending src_pending_, dst_pending_;
  int src_split_, dst_split_;
};

}  // namespace lins
