// Verification of a sharded model: notes checksums while it trains, and compares them among ranks.
//
// Compared are the parameters that each forward and backward of a unit begins with, among all ranks
// that run it; reduced gradients, P, masters and optimizer states, among the ranks that hold the
// same elements; and the operations of each communicator, among its ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "placement/layout.h"

namespace lins {

class ShardedModel;

// Of the bits of a contiguous tensor, order included.
uint64_t Checksum(const at::Tensor& tensor);

class Verification {
 public:
  explicit Verification(ShardedModel& model) : model_(model) {}
  ~Verification();

  void NoteParameters(int unit, bool backward);  // they are complete and about to be used
  void NoteGradients();                          // of a finished step
  void NoteStates();                             // after an update
  // Throws on every rank at the first difference, with step, unit, parameter and ranks. `when` is
  // for the message; final: all operations have begun on every rank. Collective over all ranks.
  void Compare(const std::string& when, bool final = false);

 private:
  enum Kind : int64_t { kOperation, kForward, kBackward, kGradient, kParam, kMaster, kOptim };
  // What is noted; of fixed size, so that ranks exchange it as it is. Notes of equal kind, item and
  // position must have equal values.
  struct Note {
    int64_t kind;      // kOptim + i: the optimizer's i-th state by name
    int64_t item;      // a window, numbered over the model; of an operation its communicator
    int64_t position;  // the use of the unit, where the elements begin, the sequence number
    int64_t group;     // of an operation: ranks of its communicator
    uint64_t value;
  };
  void Start();  // the first note
  // fn(unit, buffer, number of its first window over the model)
  template <typename Fn>
  void ForEachBuffer(Fn fn) const;
  void NoteSlots(int64_t kind, int64_t first_item, const class FlatBuffer& buffer,
                 const Layout& layout, const at::Tensor& slot);
  void NoteOperations();
  std::vector<std::vector<Note>> Exchange() const;
  // The first note that differs, and a sentence about it; "" when none does.
  std::pair<const Note*, std::string> FindDifference(const std::vector<std::vector<Note>>& all,
                                                     bool final) const;
  void DropOperations(const std::vector<std::vector<Note>>& all);  // that every rank has noted
  std::string Subject(const Note& note) const;

  ShardedModel& model_;
  std::map<std::pair<int, bool>, int64_t> uses_;  // of a unit (backwards: true) since Compare
  std::vector<Note> notes_;
  std::map<std::pair<int64_t, int64_t>, std::string> operations_;  // by communicator and sequence
  int trace_ = -1;
};

}  // namespace lins
