// What the checks of timed samples need of a device: memory of their own, moves and fills in the
// order of the stream that is timed, and sums over bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/params_measure.h"
#include "ops/ops.h"

namespace attnbench {

class CudaOps;

/// Pointers are memory of the device. On a GPU all but allocate(), table(), sums() and the copies
/// to the host are queued on its stream and return; on the CPU they are done.
class SampleMemory {
 public:
  virtual ~SampleMemory() = default;
  /// On 16 bytes; lives as long as this object. Errors: E-CAPACITY.
  virtual void* allocate(std::size_t size_bytes) = 0;
  virtual void fill(void* memory, unsigned char byte, std::size_t size_bytes) = 0;
  virtual void copy(void* target, const void* source, std::size_t size_bytes) = 0;
  /// Puts the moves where move() finds them. Waits for those before.
  virtual void table(const std::vector<attn::BlockMove>& moves) = 0;
  /// Does `count` moves of the table from `first` on.
  virtual void move(std::size_t first, std::size_t count) = 0;
  /// Not there before show(): a thread that watches the memory cannot read along.
  virtual void redraw(int element_bytes, const attn::RedrawParams& params) = 0;
  /// Behind the redraws of a sample: their targets get what was drawn, each at one instant.
  virtual void show() = 0;
  /// Starts sums again.
  virtual void clear_sums() = 0;
  /// Adds what `params` says to the sums; params.sums is not looked at.
  virtual void digest(attn::DigestParams params) = 0;
  /// When all that was queued is done.
  virtual attn::SampleDigest sums() = 0;
};

std::unique_ptr<SampleMemory> make_cpu_sample_memory();
/// `ops` must outlive it.
std::unique_ptr<SampleMemory> make_cuda_sample_memory(CudaOps& ops);

}  // namespace attnbench
