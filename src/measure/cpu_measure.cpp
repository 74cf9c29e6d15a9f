#include "measure/cpu_measure.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <system_error>
#include <tuple>
#include <vector>

#include <unistd.h>

#include "core/system/parallel.h"
#include "core/tensor.h"
#include "measure/measure.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// A cache is told by its level and the cores that share it.
using CacheId = std::tuple<std::string, std::string>;

std::size_t add_caches_of(const fs::path& cpu, std::set<CacheId>& seen) {
  std::size_t bytes = 0;
  std::error_code ignored;
  for (const fs::directory_entry& index : fs::directory_iterator(cpu / "cache", ignored)) {
    const std::string level = first_line(index.path() / "level");
    const std::string type = first_line(index.path() / "type");
    if (level.empty() || level == "1" || type == "Instruction") continue;
    const auto size = parse_cache_size(first_line(index.path() / "size"));
    if (!size || !seen.emplace(level, first_line(index.path() / "shared_cpu_list")).second)
      continue;
    bytes += *size;
  }
  return bytes;
}

bool is_cpu_folder(const std::string& name) {
  return name.size() > 3 && name.starts_with("cpu") &&
         name.find_first_not_of("0123456789", 3) == std::string::npos;
}

}  // namespace

std::optional<std::size_t> parse_cache_size(const std::string& text) {
  std::size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value == 0) return std::nullopt;
  const std::string unit(rest, end);
  if (unit.empty()) return value;
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  if (unit == "G") return value << 30;
  return std::nullopt;
}

std::optional<std::size_t> total_cache_bytes(const fs::path& sysfs) {
  std::size_t bytes = 0;
  std::set<CacheId> seen;
  std::error_code ignored;
  for (const fs::directory_entry& cpu : fs::directory_iterator(sysfs, ignored)) {
    if (is_cpu_folder(cpu.path().filename())) bytes += add_caches_of(cpu.path(), seen);
  }
  if (bytes > 0) return bytes;
  const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (last_level > 0) return static_cast<std::size_t>(last_level);
  return std::nullopt;
}

namespace {

constexpr std::size_t kUnknownCacheFlush = std::size_t{64} << 20;
/// Flushing more than this between samples would cost more than it tells.
constexpr std::size_t kLargestFlush = std::size_t{2} << 30;

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
  if (!cache) return std::make_unique<CpuCacheFlusher>(kUnknownCacheFlush, false);
  const std::size_t wanted = 2 * *cache;
  return std::make_unique<CpuCacheFlusher>(std::min(wanted, kLargestFlush),
                                           wanted <= kLargestFlush);
}

namespace {

constexpr int kLanes = 16;         // floats of a 64-byte vector; narrower machines split it
constexpr int kAccumulators = 12;  // enough to hide the latency of a multiply-add on two ports
constexpr int kCpuRepeats = 4;     // the best one counts
constexpr double kComputeSeconds = 0.02;
constexpr std::size_t kSmallestCopy = std::size_t{64} << 20;
constexpr std::size_t kLargestCopy = std::size_t{256} << 20;

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));

/// accumulators[j] = accumulators[j] * factor + addend, `rounds` times.
#if defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
// Why: the project forbids contraction for reproducible bytes; a peak rate needs it.
__attribute__((optimize("fp-contract=fast")))
#endif
void multiply_add(std::array<Vector, kAccumulators>& accumulators, std::int64_t rounds) {
#if defined(__clang__)
#pragma clang fp contract(fast)
#endif
  std::array<Vector, kAccumulators> local = accumulators;
  const Vector factor = Vector{} + 0.999f;
  const Vector addend = Vector{} + 0.001f;
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (Vector& accumulator : local) accumulator = accumulator * factor + addend;
  }
  accumulators = local;
}

/// Seconds that all threads together need for `rounds` rounds each.
double compute_seconds(ThreadPool& pool, std::int64_t rounds) {
  std::atomic<float> sink{0};
  const double start_s = steady_clock().now_s();
  pool.parallel_for(pool.num_threads(), [&](std::int64_t, int) {
    std::array<Vector, kAccumulators> accumulators{};
    multiply_add(accumulators, rounds);
    Vector sum{};
    for (const Vector& accumulator : accumulators) sum += accumulator;
    sink.store(sum[0], std::memory_order_relaxed);
  });
  return steady_clock().now_s() - start_s;
}

double best_gflops(ThreadPool& pool) {
  const double flops_per_round = 2.0 * kLanes * kAccumulators * pool.num_threads();
  std::int64_t rounds = 1 << 16;
  while (compute_seconds(pool, rounds) < kComputeSeconds / 2) rounds *= 2;
  double best_s = compute_seconds(pool, rounds);
  for (int i = 1; i < kCpuRepeats; ++i) best_s = std::min(best_s, compute_seconds(pool, rounds));
  return flops_per_round * static_cast<double>(rounds) / best_s * 1e-9;
}

/// Calls body(begin, end) for one slice of [0, size) a thread and returns the seconds of all.
template <typename Body>
double sliced_seconds(ThreadPool& pool, std::size_t size, const Body& body) {
  const auto slices = static_cast<std::size_t>(pool.num_threads());
  const double start_s = steady_clock().now_s();
  pool.parallel_for(pool.num_threads(), [&](std::int64_t slice, int) {
    const auto index = static_cast<std::size_t>(slice);
    body(size * index / slices, size * (index + 1) / slices);
  });
  return steady_clock().now_s() - start_s;
}

double best_gbps(ThreadPool& pool) {
  const std::size_t wanted = 2 * total_cache_bytes().value_or(0);
  const std::size_t size = std::clamp(wanted, kSmallestCopy, kLargestCopy) / sizeof(Vector);
  std::vector<Vector, AlignedAllocator<Vector>> source(size), target(size);
  std::atomic<float> sink{0};
  const auto bytes = static_cast<double>(size * sizeof(Vector));
  double best = 0;
  for (int i = 0; i < kCpuRepeats; ++i) {
    const double read_s = sliced_seconds(pool, size, [&](std::size_t begin, std::size_t end) {
      std::array<Vector, 4> sums{};  // independent, so that additions do not bound the rate
      for (std::size_t k = begin; k + 4 <= end; k += 4) {
        for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += source[k + lane];
      }
      sink.store((sums[0] + sums[1] + sums[2] + sums[3])[0], std::memory_order_relaxed);
    });
    const double copy_s = sliced_seconds(pool, size, [&](std::size_t begin, std::size_t end) {
      std::memcpy(target.data() + begin, source.data() + begin, (end - begin) * sizeof(Vector));
    });
    best = std::max({best, bytes / read_s * 1e-9, 2 * bytes / copy_s * 1e-9});
  }
  return best;
}

}  // namespace

CpuCeilings measure_cpu_ceilings(int num_threads) {
  ThreadPool pool(num_threads);
  return {best_gflops(pool), best_gbps(pool)};
}

}  // namespace attnbench
