// Device code on the host: the threads of one CTA take turns as fibers, and the instructions that
// kernels/ptx wraps are emulated. Slow, but it is the kernels' own code that runs, with sanitizers
// if wanted. To be included before any device file, since it defines away the keywords of CUDA.
//
// A fiber runs until it meets the others: at a barrier, a shuffle, a vote, a product of the warp.
// The order between two such points is that of the thread numbers, which one real order of the
// device is; races that show only in another order are found where the thread sanitizer looks on
// (race_testing.h). Copies (cp.async) are done at once, so a missing wait is not found. What is
// found: wrong addresses, layouts, masks, arithmetic, and barriers that only some threads reach.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <vector>

#include "ops/cuda/testing/fiber_testing.h"
#include "ops/cuda/testing/race_testing.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct EmulatedIndex {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};
inline EmulatedIndex threadIdx;  // of the fiber that runs
inline EmulatedIndex blockIdx;
inline EmulatedIndex gridDim;

namespace attnbench::cuda {

/// Threads that have their turns only when no other gets any further, or nullptr: what a lane must
/// not do before the others of its warp have come as far, it then does.
inline bool (*is_late_thread)(std::size_t thread) = nullptr;

/// A CTA: its threads take turns, from one meeting point to the next. Those of a cluster do so too.
class EmulatedCta {
 public:
  EmulatedCta(int num_threads, std::size_t shared_bytes)
      : threads_(static_cast<std::size_t>(num_threads)),
        votes_(threads_.size()),
        warps_(threads_.size() / 32),
        shared_(shared_bytes / 16 + 1) {
    everyone_.expected = num_threads;
  }

  /// Dynamic shared memory; its first byte has the shared address 0.
  unsigned char* shared() { return reinterpret_cast<unsigned char*>(shared_.data()); }
  void wait() {
    const OwnAccesses own;
    publish_to(&everyone_);
    meet(everyone_);
    observe(&everyone_);
  }
  /// __syncthreads_or: whether any thread said true. The second meeting keeps a fast thread from
  /// voting anew before all have read.
  bool any(bool mine) {
    const OwnAccesses own;
    votes_[threadIdx.x] = mine ? 1 : 0;
    wait();
    const bool result = std::find(votes_.begin(), votes_.end(), 1) != votes_.end();
    wait();
    return result;
  }

  /// What every lane of the calling thread's warp has handed in, by lane: all warp instructions are
  /// made of it. All 32 lanes must call it.
  template <typename T>
  std::array<T, 32> exchange(const T& mine) {
    static_assert(sizeof(T) <= sizeof(Slot));
    const OwnAccesses own;
    Warp& warp = warps_[threadIdx.x / 32];
    publish_to(&warp);
    std::memcpy(warp.slots[threadIdx.x % 32].data(), &mine, sizeof mine);
    meet(warp.everyone);
    std::array<T, 32> all{};
    for (std::size_t i = 0; i < 32; ++i) std::memcpy(&all[i], warp.slots[i].data(), sizeof(T));
    meet(warp.everyone);
    observe(&warp);
    return all;
  }

  /// Barrier `number` of so many threads; who does not wait is only counted.
  void meet_at(int number, int threads, bool waits = true) {
    const OwnAccesses own;
    Meeting& meeting = numbered_[number];
    meeting.expected = threads;
    const int mine = meeting.past;
    publish_to(&meeting);
    arrive(meeting);
    if (!waits) return;
    wait_for(meeting, mine);
    observe(&meeting);
  }
  /// The turn goes to the other threads. A round in which nobody calls has_progressed(), or meets,
  /// ends the run.
  void let_others() {
    const OwnAccesses own;
    leave();
  }
  void has_progressed() {
    const OwnAccesses own;
    ++progress_;
  }

  /// `work` by every thread, in the place of the device code's CTA. Errors: std::logic_error when
  /// some threads wait for others that have ended; what a thread throws.
  void run(const std::function<void()>& work);
  /// The same a turn at a time, for CTAs that run side by side: every thread gets as far as it can.
  void begin(const std::function<void()>& work);
  void take_turn();
  bool has_ended() const;
  std::int64_t progress() const { return progress_; }
  int num_threads() const { return static_cast<int>(threads_.size()); }

 private:
  using Slot = std::array<std::byte, 32>;
  struct Meeting {
    int expected = 32;
    int arrived = 0;
    int past = 0;  // meetings that are over
  };
  struct Warp {
    Meeting everyone;
    std::array<Slot, 32> slots{};
  };
  struct Thread {
    Fiber fiber;
    bool has_ended = false;
    const Meeting* waits_for = nullptr;  // its turns are passed over until this meeting is over
    int mine = 0;                        // waits_for->past when it came
    bool is_waiting() const { return waits_for != nullptr && waits_for->past == mine; }
  };

  /// Waits until all that are expected have come. Who comes last goes on at once.
  void meet(Meeting& meeting) {
    const int mine = meeting.past;
    arrive(meeting);
    wait_for(meeting, mine);
  }
  void arrive(Meeting& meeting) {
    if (++meeting.arrived != meeting.expected) return;
    meeting.arrived = 0;
    ++meeting.past;
    ++progress_;
  }
  void wait_for(const Meeting& meeting, int mine) {
    if (meeting.past != mine) return;
    Thread& thread = threads_[threadIdx.x];
    thread.waits_for = &meeting;
    thread.mine = mine;
    leave();
    thread.waits_for = nullptr;
  }
  /// To run(), until it is this thread's turn again.
  void leave() {
    Fiber* fiber = nullptr;
    {
      const OwnAccesses own;  // none while it is away: it may be for ever
      fiber = &threads_[threadIdx.x].fiber;
    }
    fiber->leave();
  }
  static void start();
  /// A turn for every thread that is late, or for every other one.
  void take_turns(bool late);

  std::vector<Thread> threads_;
  std::vector<int> votes_;  // of the threads
  std::vector<Warp> warps_;
  std::vector<uint4> shared_;
  Meeting everyone_;
  std::map<int, Meeting> numbered_;
  const std::function<void()>* work_ = nullptr;
  std::int64_t progress_ = 0;  // meetings and ends so far
  std::exception_ptr error_;   // what a thread threw, which ends the run
};

inline EmulatedCta* running_cta = nullptr;

inline void EmulatedCta::start() {
  EmulatedCta& cta = *running_cta;
  observe(&cta.work_);
  try {
    (*cta.work_)();
  } catch (...) {
    cta.error_ = std::current_exception();
  }
  publish_to(&cta.threads_);  // not where those that begin later look
  {
    const OwnAccesses own;
    cta.threads_[threadIdx.x].has_ended = true;
    ++cta.progress_;
  }
  cta.leave();
}

inline void EmulatedCta::begin(const std::function<void()>& work) {
  work_ = &work;
  publish_to(&work_);
  const OwnAccesses own;
  for (Thread& thread : threads_) {
    thread.fiber.begin(&EmulatedCta::start);
    thread.has_ended = false;
    thread.waits_for = nullptr;
  }
}

inline void EmulatedCta::take_turns(bool late) {
  for (std::size_t i = 0; i < threads_.size() && error_ == nullptr; ++i) {
    if (threads_[i].has_ended || threads_[i].is_waiting()) continue;
    if ((is_late_thread != nullptr && is_late_thread(i)) != late) continue;
    threadIdx.x = static_cast<unsigned>(i);
    threads_[i].fiber.enter();
  }
}

inline void EmulatedCta::take_turn() {
  const OwnAccesses own;
  running_cta = this;
  std::int64_t before = 0;
  do {
    before = progress_;
    take_turns(false);
  } while (is_late_thread != nullptr && before != progress_ && error_ == nullptr);
  if (is_late_thread != nullptr) take_turns(true);
  running_cta = nullptr;
  observe(&threads_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

inline bool EmulatedCta::has_ended() const {
  return std::ranges::all_of(threads_, [](const Thread& thread) { return thread.has_ended; });
}

inline void EmulatedCta::run(const std::function<void()>& work) {
  begin(work);
  for (std::int64_t before = -1; before != progress_;) {
    before = progress_;
    take_turn();
  }
  if (!has_ended()) throw std::logic_error("threads wait for others that have ended");
}

/// CTAs side by side, by rank.
struct EmulatedCluster {
  std::vector<EmulatedCta*> ctas;
  int arrived = 0;  // threads of all of them at sync_cluster(), or announced to it
  int past = 0;
  std::map<std::pair<EmulatedCta*, unsigned>, int> announced;  // what `past` was then, by thread
};
inline EmulatedCluster* running_cluster = nullptr;

}  // namespace attnbench::cuda

#include "ops/cuda/testing/emulated_warp_testing.h"

// The device's own wrappers under other names, which nobody calls: their inline PTX is for a GPU
// only. Templates that are never instantiated and inline functions that are never called cost
// nothing.
#define exp2_fast ptx_exp2_fast
#define log2_fast ptx_log2_fast
#define reciprocal_fast ptx_reciprocal_fast
#define pack ptx_pack
#define mark_nonfinite ptx_mark_nonfinite
#define least_or_nan ptx_least_or_nan
#include "kernels/ptx/packed.cuh"
#undef exp2_fast
#undef log2_fast
#undef reciprocal_fast
#undef pack
#undef mark_nonfinite
#undef least_or_nan
#define shared_address ptx_shared_address
#define load_word ptx_load_word
#define load_matrices ptx_load_matrices
#define load_matrices_transposed ptx_load_matrices_transposed
#define transpose_matrix ptx_transpose_matrix
#define multiply_add ptx_multiply_add
#define multiply_add_int8 ptx_multiply_add_int8
#include "kernels/ptx/mma_sync.cuh"
#undef shared_address
#undef load_word
#undef load_matrices
#undef load_matrices_transposed
#undef transpose_matrix
#undef multiply_add
#undef multiply_add_int8
#define copy_async ptx_copy_async
#define close_copy_group ptx_close_copy_group
#define wait_copy_groups ptx_wait_copy_groups
#define arrive_after_copies ptx_arrive_after_copies
#define load_now ptx_load_now
#define fetch_line ptx_fetch_line
#include "kernels/ptx/cp_async.cuh"
#undef copy_async
#undef close_copy_group
#undef wait_copy_groups
#undef arrive_after_copies
#undef load_now
#undef fetch_line
#define meet_threads ptx_meet_threads
#define is_last_arrival ptx_is_last_arrival
#define load_of_grid ptx_load_of_grid
#define draw_number ptx_draw_number
#include "kernels/ptx/arrivals.cuh"
#undef meet_threads
#undef is_last_arrival
#undef load_of_grid
#undef draw_number
#define in_cta ptx_in_cta
#define cluster_rank ptx_cluster_rank
#define send_words ptx_send_words
#define announce_to_cluster ptx_announce_to_cluster
#define wait_for_cluster ptx_wait_for_cluster
#define sync_cluster ptx_sync_cluster
#include "kernels/ptx/cluster.cuh"
#undef send_words
#undef announce_to_cluster
#undef wait_for_cluster
#undef sync_cluster
#undef in_cta
#undef cluster_rank

// The emulations, under the names that the kernels call.
namespace attn {

// The .ftz of the instructions: subnormal operands and results are 0.
inline float flush_subnormal(float x) { return std::fabs(x) < 0x1p-126f ? 0.0f : x; }
inline float exp2_fast(float x) { return flush_subnormal(std::exp2(flush_subnormal(x))); }
inline float log2_fast(float x) { return std::log2(x); }
inline float least_or_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::fmin(a, b);
}
inline float reciprocal_fast(float x) { return flush_subnormal(1.0f / flush_subnormal(x)); }

template <Element kElement>
u32 mark_nonfinite(u32 packed, u32 seen) {
  return seen | (nonfinite_halves<kElement>(packed) & 0x7FFF7FFFu);  // what is not finite: NaN
}

template <Element kElement>
u32 pack(float low, float high) {
  if constexpr (kElement == Element::kBF16) {
    return bf16_from_float(low) | u32{bf16_from_float(high)} << 16;
  } else {
    return f16_from_float(low) | u32{f16_from_float(high)} << 16;
  }
}

/// Of CTAs that run side by side; others have rank 0.
inline u32 cluster_rank() {
  if (attnbench::cuda::running_cluster == nullptr) return 0;
  const auto& ctas = attnbench::cuda::running_cluster->ctas;
  return static_cast<u32>(std::ranges::find(ctas, attnbench::cuda::running_cta) - ctas.begin());
}
inline u32 in_cta(u32 address, u32 rank) { return (address & 0xFFFFFFu) | rank << 24; }
/// Place in the CTA's own shared memory of an address that an instruction takes. On a device
/// ordinary loads and stores reach the memory of the CTA that the upper byte names, be it another
/// one; no kernel means to do so.
inline u32 of_own(u32 address) {
  if (address >> 24 != cluster_rank()) throw std::logic_error("an address of another CTA");
  return address & 0xFFFFFFu;
}
inline unsigned char* own_memory(u32 address) {
  return attnbench::cuda::running_cta->shared() + of_own(address);
}

/// Shared addresses count from the start of the dynamic shared memory.
inline u32 shared_address(const void* pointer) {
  const auto offset =
      static_cast<const unsigned char*>(pointer) - attnbench::cuda::running_cta->shared();
  return in_cta(static_cast<u32>(offset), cluster_rank());
}
template <typename T>
T load_shared(u32 address) {
  T value;
  std::memcpy(&value, own_memory(address), sizeof value);
  return value;
}
inline u32 load_word(u32 address) { return load_shared<u32>(address); }

inline void load_matrices(u32 address, u32 (&to)[4]) {
  const auto rows = attnbench::cuda::running_cta->exchange(address);
  const u32 lane = threadIdx.x % 32;
  for (u32 m = 0; m < 4; ++m) to[m] = load_word(rows[8 * m + lane / 4] + lane % 4 * 4);
}
inline void load_matrices_transposed(u32 address, u32 (&to)[4]) {
  const auto rows = attnbench::cuda::running_cta->exchange(address);
  const u32 lane = threadIdx.x % 32;
  const u32 column = lane / 4 * 2;
  for (u32 m = 0; m < 4; ++m) {
    const u32 first = 8 * m + lane % 4 * 2;
    to[m] = load_shared<u16>(rows[first] + column) | u32{load_shared<u16>(rows[first + 1] + column)}
                                                         << 16;
  }
}

inline u32 transpose_matrix(u32 pair) {
  const auto lanes = attnbench::cuda::running_cta->exchange(pair);
  const u32 lane = threadIdx.x % 32;
  const auto element = [&](u32 row, u32 column) {
    return lanes[row * 4 + column / 2] >> column % 2 * 16 & 0xFFFFu;
  };
  return element(lane % 4 * 2, lane / 4) | element(lane % 4 * 2 + 1, lane / 4) << 16;
}

/// Sums in double, rounded once, so as exact as no tensor core is: comparisons need the tolerance
/// of the device's f32 sums all the same. The layout of the fragments: mma_sync.cuh.
template <Element kElement>
void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct Fragments {
    u32 a[4];
    u32 b[2];
  };
  const auto lanes =
      attnbench::cuda::running_cta->exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto number = [](u32 word, int half) {
    const auto code = static_cast<u16>(word >> 16 * half);
    return double{kElement == Element::kBF16 ? bf16_to_float(code) : f16_to_float(code)};
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < 4; ++i) {
    double sum = double{c[i]};
    const int column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const auto left = static_cast<std::size_t>(lane / 4 * 4 + k % 8 / 2);
      const auto right = static_cast<std::size_t>(column * 4 + k % 8 / 2);
      sum += number(lanes[left].a[k / 8 * 2 + i / 2], k % 2) * number(lanes[right].b[k / 8], k % 2);
    }
    c[i] = static_cast<float>(sum);
  }
}

inline void multiply_add_int8(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct Fragments {
    u32 a[4];
    u32 b[2];
  };
  const auto lanes =
      attnbench::cuda::running_cta->exchange(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto number = [](u32 word, int byte) {
    return static_cast<int>(static_cast<signed char>(word >> 8 * byte));
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < 4; ++i) {
    const int column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 32; ++k) {
      const auto left = static_cast<std::size_t>(lane / 4 * 4 + k % 16 / 4);
      const auto right = static_cast<std::size_t>(column * 4 + k % 16 / 4);
      c[i] +=
          number(lanes[left].a[k / 16 * 2 + i / 2], k % 4) * number(lanes[right].b[k / 16], k % 4);
    }
  }
}

/// Done at once; waiting for groups has nothing to do.
template <int kBytes>
void copy_async(u32 to_shared, const void* from, bool valid = true) {
  unsigned char* const to = own_memory(to_shared);
  if (valid) {
    std::memcpy(to, from, kBytes);
  } else {
    std::memset(to, 0, kBytes);
  }
}
inline void close_copy_group() {}
template <int kPending>
void wait_copy_groups() {}

inline void meet_threads(int number, int threads) {
  attnbench::cuda::running_cta->meet_at(number, threads);
}
inline bool is_last_arrival(int* counter, int expected) {
  attnbench::cuda::publish_to(counter);
  attnbench::cuda::observe(counter);
  const attnbench::cuda::OwnAccesses own;
  const bool is_last = *counter + 1 == expected;
  *counter = is_last ? 0 : *counter + 1;
  return is_last;
}
inline int draw_number(int* counter) {
  const attnbench::cuda::OwnAccesses own;
  return (*counter)++;
}
template <typename T>
T load_of_grid(const T* from) {
  return *from;
}

inline void announce_to_cluster() {
  using attnbench::cuda::running_cta;
  attnbench::cuda::EmulatedCluster& cluster = *attnbench::cuda::running_cluster;
  attnbench::cuda::publish_to(&cluster);
  const attnbench::cuda::OwnAccesses own;
  int threads = 0;
  for (const attnbench::cuda::EmulatedCta* cta : cluster.ctas) threads += cta->num_threads();
  cluster.announced[{running_cta, threadIdx.x}] = cluster.past;
  if (++cluster.arrived < threads) return;
  cluster.arrived = 0;
  ++cluster.past;
  running_cta->has_progressed();
}
inline void wait_for_cluster() {
  using attnbench::cuda::running_cta;
  attnbench::cuda::EmulatedCluster& cluster = *attnbench::cuda::running_cluster;
  {
    const attnbench::cuda::OwnAccesses own;
    const int mine = cluster.announced.at({running_cta, threadIdx.x});
    while (cluster.past == mine) running_cta->let_others();
  }
  attnbench::cuda::observe(&cluster);
}
inline void sync_cluster() {
  announce_to_cluster();
  wait_for_cluster();
}

/// At once, and nothing.
inline int load_now(const int* from) { return *from; }
inline void fetch_line(const void*) {}

}  // namespace attn
