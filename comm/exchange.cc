#include "comm/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/reduce.h"

namespace lins {

Cuts::Cuts(int64_t most, int64_t element_size, int64_t count, int64_t bytes)
    : size_(std::max<int64_t>({(most + count - 1) / count, bytes / element_size, 1})),
      count_((most + size_ - 1) / size_) {}

int64_t Cuts::Begin(int64_t cut, int64_t n) const { return std::min(cut * size_, n); }

char* Piece::data() const {
  return static_cast<char*>(flat.mutable_data_ptr()) + offset * flat.element_size();
}

Piece Piece::Cut(const Cuts& cuts, int64_t cut) const {
  const int64_t begin = cuts.Begin(cut, n);
  return {flat, offset + begin, cuts.Begin(cut + 1, n) - begin};
}

std::vector<Piece> Parts(const at::Tensor& flat, const Counts& counts) {
  std::vector<Piece> parts;
  parts.reserve(counts.size());
  int64_t offset = 0;
  for (const int64_t n : counts) {
    parts.push_back({flat, offset, n});
    offset += n;
  }
  return parts;
}

void CopyPiece(const Piece& to, const Piece& from) {
  if (from.n > 0 && to.data() != from.data()) {
    std::memcpy(to.data(), from.data(), from.n * from.flat.element_size());
  }
}

Exchange::Exchange(c10::intrusive_ptr<c10d::Backend> group, std::vector<int64_t> ranks, int tag,
                   int kind, std::shared_ptr<SentCounters> sent, std::shared_ptr<StagingPool> pool)
    : wire_(std::move(group), std::move(ranks), tag, kind, std::move(sent)),
      pool_(std::move(pool)) {}

Exchange::~Exchange() {
  if (complete_ && staging_.defined()) pool_->Give(staging_);  // else Gloo may still write to it
}

void Exchange::Send(const Piece& piece, int64_t to, int phase) {
  wire_.Send(piece.flat, piece.offset, piece.n, to, phase);
}

void Exchange::Recv(const Piece& piece, int64_t from, int phase) {
  wire_.Recv(piece.flat, piece.offset, piece.n, from, phase);
}

at::Tensor Exchange::Stage(int64_t n, at::ScalarType dtype) {
  const int64_t bytes = n * static_cast<int64_t>(c10::elementSize(dtype));
  staging_ = pool_->Take(bytes);
  at::AutoDispatchBelowADInplaceOrView guard;
  return staging_.narrow(0, 0, bytes).view(dtype);
}

void Exchange::Run(double timeout_seconds) {
  const Deadline deadline(timeout_seconds);
  for (const Step& step : steps_) {
    wire_.WaitRecvs(step.received, deadline);
    if (!step.parts.empty() && step.into.n > 0) {
      ReduceInOrder(step.into.data(), step.parts, step.into.n, step.into.flat.scalar_type(),
                    step.op, step.runs, step.divisor);
    }
    for (const Message& message : step.sends) Send(message.what, message.to, message.phase);
  }
  wire_.WaitAll(deadline);
  complete_ = true;
}

}  // namespace lins
