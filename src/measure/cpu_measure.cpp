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
#include <functional>
#include <new>
#include <set>
#include <sstream>
#include <system_error>
#include <tuple>

#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/system/parallel.h"
#include "core/tensor.h"
#include "measure/cpu_wait.h"
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

/// Calls body(begin, end) for one slice of [0, size) a thread.
template <typename Body>
void in_slices(ThreadPool& pool, std::size_t size, const Body& body) {
  const auto slices = static_cast<std::size_t>(pool.num_threads());
  pool.parallel_for(pool.num_threads(), [&](std::int64_t slice, int) {
    const auto index = static_cast<std::size_t>(slice);
    body(size * index / slices, size * (index + 1) / slices);
  });
}

/// Zeroed memory whose pages are first written by the thread that has their slice. Why not a
/// vector: one thread would write all of it, which takes longer than what is measured with it and
/// keeps every page in the memory of one socket. In pages of 2 MiB where the system has some: to
/// get pages of 4 KiB for hundreds of megabytes took a fifth of a short run.
template <typename T>
class SlicedMemory {
 public:
  SlicedMemory(ThreadPool& pool, std::size_t size)
      : size_(size), all_(static_cast<T*>(::operator new(size * sizeof(T), kAlignment))) {
    madvise(all_, size * sizeof(T), MADV_HUGEPAGE);  // refused where there are none
    in_slices(pool, size, [&](std::size_t begin, std::size_t end) {
      std::memset(static_cast<void*>(all_ + begin), 0, (end - begin) * sizeof(T));
    });
  }
  ~SlicedMemory() { ::operator delete(all_, kAlignment); }
  SlicedMemory(const SlicedMemory&) = delete;
  SlicedMemory& operator=(const SlicedMemory&) = delete;
  T* data() { return all_; }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{std::size_t{2} << 20};
  std::size_t size_;
  T* all_;
};

class CpuCacheFlusher final : public CacheFlusher {
 public:
  CpuCacheFlusher(std::size_t size_bytes, bool proven_cold)
      : buffer_(pool_, size_bytes / sizeof(std::uint64_t)), proven_cold_(proven_cold) {}

  /// Every thread writes and reads its slice, so that private caches are evicted too.
  void flush() override {
    ++round_;
    in_slices(pool_, buffer_.size(), [&](std::size_t begin, std::size_t end) {
      std::uint64_t sum = 0;
      for (std::size_t i = begin; i < end; ++i) {
        sum += buffer_.data()[i];
        buffer_.data()[i] = round_;
      }
      sink_.fetch_add(sum, std::memory_order_relaxed);
    });
  }
  L2Mode leaves() const override { return proven_cold_ ? L2Mode::kCold : L2Mode::kWarm; }
  std::size_t size_bytes() const override { return buffer_.size() * sizeof(std::uint64_t); }

 private:
  ThreadPool pool_;
  SlicedMemory<std::uint64_t> buffer_;
  std::uint64_t round_ = 0;
  std::atomic<std::uint64_t> sink_{0};  // keeps the reads alive
  bool proven_cold_;
};

class CpuCleanFlusher final : public CacheFlusher {
 public:
  explicit CpuCleanFlusher(CacheFlusher& writer)
      : writer_(writer), buffer_(pool_, writer.size_bytes() / sizeof(std::uint64_t)) {}

  void flush() override {
    writer_.flush();
    in_slices(pool_, buffer_.size(), [&](std::size_t begin, std::size_t end) {
      std::uint64_t sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += buffer_.data()[i];
      sink_.fetch_add(sum, std::memory_order_relaxed);
    });
  }
  L2Mode leaves() const override {
    return writer_.leaves() == L2Mode::kCold ? L2Mode::kClean : L2Mode::kWarm;
  }
  std::size_t size_bytes() const override { return writer_.size_bytes(); }

 private:
  CacheFlusher& writer_;
  ThreadPool pool_;
  SlicedMemory<std::uint64_t> buffer_;
  std::atomic<std::uint64_t> sink_{0};  // keeps the reads alive
};

}  // namespace

std::unique_ptr<CacheFlusher> make_cpu_cache_flusher() {
  const std::optional<std::size_t> cache = total_cache_bytes();
  if (!cache) return std::make_unique<CpuCacheFlusher>(kUnknownCacheFlush, false);
  const std::size_t wanted = 2 * *cache;
  return std::make_unique<CpuCacheFlusher>(std::min(wanted, kLargestFlush),
                                           wanted <= kLargestFlush);
}

std::unique_ptr<CacheFlusher> make_cpu_clean_flusher(CacheFlusher& writer) {
  return std::make_unique<CpuCleanFlusher>(writer);
}

namespace {

constexpr int kCpuRepeats = 4;  // the best one counts
/// Two quiet rates that are this near each other are the machine's: more would only take time.
constexpr double kAgreement = 0.02;
// Longer than it takes to wake threads, and short beside the slices that a busy machine gives to a
// thread: of longer runs, none was quiet there.
constexpr double kComputeSeconds = 0.006;
constexpr std::size_t kLeastStream = std::size_t{128} << 20;
constexpr std::size_t kMostStream = std::size_t{256} << 20;
constexpr int kVectorBytes = 64;

using Vector = float __attribute__((vector_size(kVectorBytes)));

constexpr int kAccumulators = 12;  // enough to hide the latency of a multiply-add on two ports

// Twelve sums, each times a factor plus an addend, `rounds` times. Why by name and not an array:
// compilers keep arrays of vectors in memory, at a twentieth of the rate. Why for each set of
// instructions: the ceiling is that of the machine, whatever this program was compiled for.
#define ATTNBENCH_STEP(sum) sum = sum * factor + addend;
#define ATTNBENCH_MULTIPLY_ADD(name, lanes, attributes)                                         \
  attributes float name(std::int64_t rounds) {                                                  \
    using Lanes = float __attribute__((vector_size(lanes * sizeof(float))));                    \
    const Lanes factor = Lanes{} + 0.999f;                                                      \
    const Lanes addend = Lanes{} + 0.001f;                                                      \
    Lanes a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};                           \
    for (std::int64_t round = 0; round < rounds; ++round) {                                     \
      ATTNBENCH_STEP(a)                                                                         \
      ATTNBENCH_STEP(b)                                                                         \
      ATTNBENCH_STEP(c)                                                                         \
      ATTNBENCH_STEP(d)                                                                         \
      ATTNBENCH_STEP(e)                                                                         \
      ATTNBENCH_STEP(f)                                                                         \
      ATTNBENCH_STEP(g)                                                                         \
      ATTNBENCH_STEP(h) ATTNBENCH_STEP(i) ATTNBENCH_STEP(j) ATTNBENCH_STEP(k) ATTNBENCH_STEP(l) \
    }                                                                                           \
    const Lanes sum = a + b + c + d + e + f + g + h + i + j + k + l;                            \
    return sum[0];                                                                              \
  }

// The project forbids contraction for reproducible bytes; a peak rate needs it.
#if defined(__clang__)
#pragma clang fp contract(fast)
#define ATTNBENCH_PEAK __attribute__((noinline))
#else
#define ATTNBENCH_PEAK __attribute__((noinline, optimize("O3", "fp-contract=fast")))
#endif

ATTNBENCH_MULTIPLY_ADD(multiply_add_as_compiled, 4, ATTNBENCH_PEAK)
#if defined(__x86_64__)
ATTNBENCH_MULTIPLY_ADD(multiply_add_avx2, 8, ATTNBENCH_PEAK __attribute__((target("avx2,fma"))))
ATTNBENCH_MULTIPLY_ADD(multiply_add_avx512, 16, ATTNBENCH_PEAK __attribute__((target("avx512f"))))
#endif
#undef ATTNBENCH_PEAK
#undef ATTNBENCH_MULTIPLY_ADD
#undef ATTNBENCH_STEP

/// The widest loop that this machine has instructions for.
struct PeakLoop {
  float (*run)(std::int64_t rounds) = multiply_add_as_compiled;
  int lanes = 4;
};

PeakLoop widest_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {multiply_add_avx512, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {multiply_add_avx2, 8};
  }
#endif
  return {};
}

/// The best rate of all runs of a loop, and of those that no other program held up.
struct Rates {
  double best = 0;
  double quiet = 0;
  double second_quiet = 0;
  int num_quiet = 0;

  void add_quiet(double rate) {
    second_quiet = std::max(second_quiet, std::min(quiet, rate));
    quiet = std::max(quiet, rate);
    ++num_quiet;
  }
  bool is_settled() const {
    return num_quiet >= kCpuRepeats || second_quiet > (1 - kAgreement) * quiet;
  }
};

/// Runs `work`, which does `amount`, and counts its rate.
void count_rate(double amount, const std::function<void()>& work, Rates& rates) {
  // A thread without a core for a twentieth of the time makes the rate lower by as much, at least.
  constexpr double kQuietShare = 0.05;
  const ThreadWaits before = thread_waits();
  const double start_s = steady_clock().now_s();
  work();
  const double elapsed_s = steady_clock().now_s() - start_s;
  const double waited_us = longest_wait_us(before, thread_waits());
  const double rate = amount / elapsed_s;
  rates.best = std::max(rates.best, rate);
  // Where it is not known how long threads waited no run is known to be quiet.
  if (!(waited_us <= kQuietShare * 1e6 * elapsed_s)) return;
  rates.add_quiet(rate);
}

/// Until enough runs were quiet or two of them agree, or too many were not or took too long.
Rates best_rates(const std::function<void(Rates& rates)>& run) {
  constexpr int kMostRepeats = 4 * kCpuRepeats;
  constexpr double kMostSeconds = 0.25;
  const double start_s = steady_clock().now_s();
  Rates rates;
  for (int i = 0; i < kMostRepeats && !rates.is_settled(); ++i) {
    if (i >= kCpuRepeats && steady_clock().now_s() - start_s > kMostSeconds) break;
    run(rates);
  }
  return rates;
}

/// All threads together, `rounds` rounds each.
void multiply_add(ThreadPool& pool, const PeakLoop& loop, std::int64_t rounds) {
  std::atomic<float> sink{0};
  pool.parallel_for(pool.num_threads(), [&](std::int64_t, int) {
    sink.store(loop.run(rounds), std::memory_order_relaxed);
  });
}

Rates matrix_flops(ThreadPool& pool) {
  const PeakLoop loop = widest_loop();
  const double flops_per_round = 2.0 * loop.lanes * kAccumulators * pool.num_threads();
  std::int64_t rounds = 1 << 16;
  const auto seconds = [&] {
    const double start_s = steady_clock().now_s();
    multiply_add(pool, loop, rounds);
    return steady_clock().now_s() - start_s;
  };
  while (seconds() < kComputeSeconds / 2) rounds *= 2;
  return best_rates([&](Rates& rates) {
    count_rate(
        flops_per_round * static_cast<double>(rounds), [&] { multiply_add(pool, loop, rounds); },
        rates);
  });
}

/// Copies past the caches, four pages in turns. A store that first reads the line that it
/// overwrites moves half as much again, and copying one page after the other leaves banks of the
/// memory idle. From which size on memcpy avoids both depends on the machine.
void stream(const Vector* from, std::size_t count, Vector* to) {
  std::size_t done = 0;
#if defined(__x86_64__)
  constexpr std::size_t kPages = 4;
  constexpr std::size_t kPageVectors = 4096 / sizeof(Vector);
  constexpr std::size_t kStoreFloats = 4;
  for (; done + kPages * kPageVectors <= count; done += kPages * kPageVectors) {
    for (std::size_t i = done; i < done + kPageVectors; ++i) {
      for (std::size_t page = 0; page < kPages; ++page) {
        const auto* source = reinterpret_cast<const float*>(from + i + page * kPageVectors);
        auto* target = reinterpret_cast<float*>(to + i + page * kPageVectors);
        for (std::size_t k = 0; k < sizeof(Vector) / sizeof(float); k += kStoreFloats) {
          _mm_stream_ps(target + k, _mm_load_ps(source + k));
        }
      }
    }
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, (count - done) * sizeof(Vector));
}

/// Streams twice as much as all caches hold, if that is known and does not take long: reads it as a
/// whole, and copies its one half to the other.
Rates memory_bytes(ThreadPool& pool) {
  const std::size_t wanted = 2 * total_cache_bytes().value_or(0);
  const std::size_t half = std::clamp(wanted, kLeastStream, kMostStream) / sizeof(Vector) / 2;
  SlicedMemory<Vector> memory(pool, 2 * half);
  std::atomic<float> sink{0};
  const auto bytes = static_cast<double>(memory.size() * sizeof(Vector));
  const auto read = [&](std::size_t begin, std::size_t end) {
    std::array<Vector, 4> sums{};  // independent, so that additions do not bound the rate
    for (std::size_t k = begin; k + 4 <= end; k += 4) {
      for (std::size_t lane = 0; lane < 4; ++lane) sums[lane] += memory.data()[k + lane];
    }
    sink.store((sums[0] + sums[1] + sums[2] + sums[3])[0], std::memory_order_relaxed);
  };
  const auto copy = [&](std::size_t begin, std::size_t end) {
    stream(memory.data() + begin, end - begin, memory.data() + half + begin);
  };
  return best_rates([&](Rates& rates) {
    Rates of_reads;
    Rates of_copies;
    count_rate(
        bytes, [&] { in_slices(pool, memory.size(), read); }, of_reads);
    count_rate(
        bytes, [&] { in_slices(pool, half, copy); }, of_copies);
    rates.best = std::max({rates.best, of_reads.best, of_copies.best});
    if (of_reads.num_quiet == 0 || of_copies.num_quiet == 0) return;
    rates.add_quiet(std::max(of_reads.quiet, of_copies.quiet));
  });
}

}  // namespace

CpuCeilings measure_cpu_ceilings(int num_threads) {
  ThreadPool pool(num_threads);
  const Rates flops = matrix_flops(pool);
  const Rates bytes = memory_bytes(pool);
  return {flops.best * 1e-9, bytes.best * 1e-9, flops.quiet * 1e-9, bytes.quiet * 1e-9};
}

CpuCeilings best_of(const CpuCeilings& a, const CpuCeilings& b) {
  return {std::max(a.gflops, b.gflops), std::max(a.gbps, b.gbps),
          std::max(a.quiet_gflops, b.quiet_gflops), std::max(a.quiet_gbps, b.quiet_gbps)};
}

double faster_units(const std::string& cpu_flags, bool has_int8_products) {
  std::istringstream words(cpu_flags);
  double factor = 1;
  for (std::string word; words >> word;) {
    // Of a product in units of a multiply-add of f32: two or four in a lane, or a tile of 16 x 16.
    if (word == "avx512_bf16" || word == "avx512_fp16") factor = std::max(factor, 2.0);
    if (word == "amx_bf16" || word == "amx_fp16") factor = std::max(factor, 32.0);
    if (!has_int8_products) continue;
    if (word == "avx512_vnni" || word == "avx_vnni") factor = std::max(factor, 4.0);
    if (word == "amx_int8") factor = std::max(factor, 64.0);
  }
  return factor;
}

std::string cpu_flags(const fs::path& cpuinfo) {
  std::ifstream file(cpuinfo);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) return line.substr(std::min(line.find(':') + 1, line.size()));
  }
  return "";
}

}  // namespace attnbench
