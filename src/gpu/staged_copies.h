// Large copies between pageable memory of the host and a device, by way of pinned memory and
// several threads.
//
// Why: the driver takes pageable memory through a small buffer of its own on one thread, at 1 to
// 3 GB/s where the link has 50. To fetch the outputs of a case took longer than all of its runs.
#pragma once

#include <cstddef>
#include <memory>

#include "core/system/parallel.h"

namespace attnbench {

/// What a device does in order, beside the host.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  virtual void* allocate_pinned(std::size_t size_bytes) = 0;
  virtual void release_pinned(void* memory) = 0;
  /// Queues a copy; one side is pinned memory.
  virtual void copy(void* destination, const void* source, std::size_t size_bytes) = 0;
  /// Queues a mark behind what was queued so far; `half` is 0 or 1.
  virtual void mark(int half) = 0;
  /// Until the last mark of `half` is reached.
  virtual void wait(int half) = 0;
};

/// One after the other; not to be used by several threads at once.
class StagedCopies {
 public:
  /// Less is copied as fast without.
  static constexpr std::size_t kWorthwhile = std::size_t{4} << 20;
  /// Of each of the two halves, one of which is filled while the other is emptied.
  static constexpr std::size_t kHalf = std::size_t{16} << 20;

  StagedCopies() = default;
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  /// Done when it returns. Errors: E-CAPACITY, those of the queue.
  void to_host(CopyQueue& queue, void* destination, const void* source, std::size_t size_bytes);
  /// `source` has been read when it returns, but the last copies may still be queued.
  void to_device(CopyQueue& queue, void* destination, const void* source, std::size_t size_bytes);
  /// Gives the pinned memory back, if there is some.
  void release(CopyQueue& queue) noexcept;

 private:
  std::byte* half(int which) const { return pinned_ + static_cast<std::size_t>(which) * kHalf; }
  void prepare(CopyQueue& queue);
  void copy_on_threads(std::byte* destination, const std::byte* source, std::size_t size_bytes);

  std::byte* pinned_ = nullptr;
  std::unique_ptr<ThreadPool> threads_;
};

}  // namespace attnbench
