#include "gpu/staged_copies.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace attnbench {
namespace {

/// More are no faster than memory, and each has to be woken for every half.
constexpr int kMostThreads = 8;
constexpr std::size_t kOfThread = std::size_t{1} << 20;

}  // namespace

void StagedCopies::prepare(CopyQueue& queue) {
  if (pinned_ == nullptr) pinned_ = static_cast<std::byte*>(queue.allocate_pinned(2 * kHalf));
  if (!threads_) threads_ = std::make_unique<ThreadPool>(std::min(kMostThreads, available_cores()));
}

void StagedCopies::release(CopyQueue& queue) noexcept {
  if (pinned_ != nullptr) queue.release_pinned(pinned_);
  pinned_ = nullptr;
}

void StagedCopies::copy_on_threads(std::byte* destination, const std::byte* source,
                                   std::size_t size_bytes) {
  const auto pieces = static_cast<std::int64_t>((size_bytes + kOfThread - 1) / kOfThread);
  threads_->parallel_for(pieces, [&](std::int64_t piece, int) {
    const std::size_t first = static_cast<std::size_t>(piece) * kOfThread;
    std::memcpy(destination + first, source + first, std::min(kOfThread, size_bytes - first));
  });
}

void StagedCopies::to_host(CopyQueue& queue, void* destination, const void* source,
                           std::size_t size_bytes) {
  prepare(queue);
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  const auto size_at = [&](std::size_t first) { return std::min(kHalf, size_bytes - first); };
  const auto fetch = [&](std::size_t first, int which) {
    queue.copy(half(which), from + first, size_at(first));
    queue.mark(which);
  };
  if (size_bytes > 0) fetch(0, 0);
  int now = 0;
  for (std::size_t first = 0; first < size_bytes; first += kHalf, now = 1 - now) {
    if (size_bytes - first > kHalf) fetch(first + kHalf, 1 - now);
    queue.wait(now);
    copy_on_threads(to + first, half(now), size_at(first));
  }
}

void StagedCopies::to_device(CopyQueue& queue, void* destination, const void* source,
                             std::size_t size_bytes) {
  prepare(queue);
  auto* const to = static_cast<std::byte*>(destination);
  const auto* const from = static_cast<const std::byte*>(source);
  int now = 0;
  bool is_used[2] = {false, false};
  for (std::size_t first = 0; first < size_bytes; first += kHalf, now = 1 - now) {
    const std::size_t size = std::min(kHalf, size_bytes - first);
    if (is_used[now]) queue.wait(now);
    copy_on_threads(half(now), from + first, size);
    queue.copy(to + first, half(now), size);
    queue.mark(now);
    is_used[now] = true;
  }
}

}  // namespace attnbench
