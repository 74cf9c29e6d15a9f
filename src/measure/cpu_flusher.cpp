#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "measure/cpu_cache.h"
#include "measure/measure.h"

namespace attnbench {
namespace {

constexpr std::size_t kUnknownCacheBuffer = std::size_t{64} << 20;
/// Flushing more than this between samples would cost more than it tells.
constexpr std::size_t kLargestBuffer = std::size_t{2} << 30;

class CpuCacheFlusher final : public CacheFlusher {
 public:
  CpuCacheFlusher(std::size_t size_bytes, bool proven_cold)
      : buffer_(size_bytes / sizeof(std::uint64_t)), proven_cold_(proven_cold) {}

  /// Every thread writes and reads its slice, so that private caches are evicted too.
  void flush() override {
    const std::int64_t slices = pool_.num_threads();
    const auto size = static_cast<std::int64_t>(buffer_.size());
    ++round_;
    pool_.parallel_for(slices, [&](std::int64_t slice, int) {
      const std::int64_t end = size * (slice + 1) / slices;
      std::uint64_t sum = 0;
      for (std::int64_t i = size * slice / slices; i < end; ++i) {
        sum += buffer_[static_cast<std::size_t>(i)];
        buffer_[static_cast<std::size_t>(i)] = round_;
      }
      sink_.fetch_add(sum, std::memory_order_relaxed);
    });
  }
  bool proven_cold() const override { return proven_cold_; }
  std::size_t size_bytes() const override { return buffer_.size() * sizeof(std::uint64_t); }

 private:
  ThreadPool pool_;
  std::vector<std::uint64_t> buffer_;
  std::uint64_t round_ = 0;
  std::atomic<std::uint64_t> sink_{0};  // keeps the reads alive
  bool proven_cold_;
};

}  // namespace

std::unique_ptr<CacheFlusher> make_cpu_cache_flusher() {
  const std::optional<std::size_t> cache = total_cache_bytes();
  if (!cache) return std::make_unique<CpuCacheFlusher>(kUnknownCacheBuffer, false);
  const std::size_t wanted = 2 * *cache;
  return std::make_unique<CpuCacheFlusher>(std::min(wanted, kLargestBuffer),
                                           wanted <= kLargestBuffer);
}

}  // namespace attnbench
