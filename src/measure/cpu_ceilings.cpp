#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "core/tensor.h"
#include "measure/cpu_cache.h"
#include "measure/measure.h"

namespace attnbench {
namespace {

constexpr int kLanes = 16;         // floats of a 64-byte vector; narrower machines split it
constexpr int kAccumulators = 12;  // enough to hide the latency of a multiply-add on two ports
constexpr int kRepeats = 4;        // the best one counts
constexpr double kComputeSeconds = 0.02;
constexpr std::size_t kSmallestBuffer = std::size_t{64} << 20;
constexpr std::size_t kLargestBuffer = std::size_t{256} << 20;

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
  for (int i = 1; i < kRepeats; ++i) best_s = std::min(best_s, compute_seconds(pool, rounds));
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
  const std::size_t size = std::clamp(wanted, kSmallestBuffer, kLargestBuffer) / sizeof(Vector);
  std::vector<Vector, AlignedAllocator<Vector>> source(size), target(size);
  std::atomic<float> sink{0};
  const auto bytes = static_cast<double>(size * sizeof(Vector));
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
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
