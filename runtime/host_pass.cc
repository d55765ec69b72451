#include "runtime/host_pass.h"

#include <ATen/ATen.h>

#include <array>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "comm/order_checker.h"
#include "mesh/error.h"

namespace lins {
namespace {

using Tensors = std::vector<at::Tensor>;

void Copy(const Tensors& to, const Tensors& from, std::atomic<int64_t>& bytes) {
  for (size_t i = 0; i < to.size(); ++i) {
    NoteRead(from[i], "offload", "");
    NoteWrite(to[i], "offload", "");
    to[i].copy_(from[i], /*non_blocking=*/true);
    bytes += static_cast<int64_t>(from[i].nbytes());
  }
}

}  // namespace

at::TensorOptions InHostMemory(at::TensorOptions like) {
  const bool pinned = !like.device().is_cpu();
  return like.device(at::kCPU).pinned_memory(pinned);
}

HostPass::HostPass(std::shared_ptr<BufferPool> pool, bool concurrent)
    : pool_(std::move(pool)),
      in_(concurrent, pool_->queue(), "copy in"),
      out_(concurrent, pool_->queue(), "copy back") {}

void HostPass::Reserve(int64_t chunk_bytes) {
  Release();
  if (chunk_bytes == 0) return;
  try {
    for (int i = 0; i < kOffloadBuffers; ++i) buffers_.push_back(pool_->Acquire(chunk_bytes));
  } catch (const std::exception& e) {
    Release();
    throw Error(absl::StrCat("no memory for ", kOffloadBuffers, " chunks of ", chunk_bytes,
                             " bytes to update offloaded optimizer states: a smaller ",
                             "offload_chunk_bytes needs less; ", e.what()),
                Error::Kind::kRuntime);
  }
  chunk_bytes_ = chunk_bytes;
}

void HostPass::Release() {
  buffers_.clear();
  chunk_bytes_ = 0;
}

Tensors HostPass::Place(size_t buffer, const Tensors& arrays) const {
  Tensors out;
  int64_t at = 0;
  for (const at::Tensor& host : arrays) {
    const auto nbytes = static_cast<int64_t>(host.nbytes());
    LINS_CHECK(at + nbytes <= chunk_bytes_, "a chunk of more than the ", chunk_bytes_,
               " bytes that are reserved");
    out.push_back(buffers_[buffer]
                      ->As(at::kByte, chunk_bytes_)
                      .narrow(0, at, nbytes)
                      .view(host.scalar_type()));
    at += Padded(nbytes);
  }
  return out;
}

void HostPass::Run(std::vector<Chunk> chunks) {
  struct Buffer {
    Event in, out;
    Tensors device;
  };
  std::array<Buffer, kOffloadBuffers> staged;
  const absl::Cleanup settle = [this] {  // buffers and arrays outlive every copy
    in_.Reset();
    out_.Reset();
  };
  const auto next = [&](size_t from) {  // the next chunk that is staged
    while (from < chunks.size() && chunks[from].arrays.empty()) ++from;
    return from;
  };
  size_t fetched = next(0);  // what is copied in next
  size_t to = 0, at = 0;     // the buffer for it, and that of the chunk at work
  const auto fetch = [&] {
    if (fetched == chunks.size()) return;
    Buffer& b = staged[to];
    b.device = Place(to, chunks[fetched].arrays);
    b.in = in_.Run([this, lease = buffers_[to], last = b.out, device = b.device,
                    host = chunks[fetched].arrays] {
      lease->Begin();
      last.Wait();
      Copy(device, host, in_bytes_);
    });
    to = (to + 1) % staged.size();
    fetched = next(fetched + 1);
  };
  fetch();
  for (const Chunk& chunk : chunks) {
    if (chunk.arrays.empty()) {
      chunk.work({});
      continue;
    }
    fetch();
    Buffer& b = staged[at];
    at = (at + 1) % staged.size();
    b.in.Wait();
    for (const at::Tensor& array : b.device) NoteWrite(array, "offloaded update", "");
    chunk.work(b.device);
    b.out = out_.Run(
        [this, device = b.device, host = chunk.arrays] { Copy(host, device, out_bytes_); });
  }
  for (const Buffer& b : staged) b.out.Synchronize();  // the host may read them
}

}  // namespace lins
