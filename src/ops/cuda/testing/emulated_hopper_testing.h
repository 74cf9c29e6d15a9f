// What emulated_cta_testing.h leaves out: the asynchronous instructions of SM 9.0. As late as the
// device may be: a product is computed when it is waited for, from what shared memory and registers
// hold then, and a copy arrives when somebody waits for its barrier in vain, the last queued first.
// So a stage that is left too early, registers that are overwritten too soon and a wait that is
// missing give wrong results here as well. Descriptors and swizzles are decoded from the PTX
// manual's description, not by the functions that the kernels make them with.
#pragma once

#include <deque>
#include <map>
#include <random>

#include "gpu/tensor_map.h"
#include "ops/cuda/testing/emulated_operands_testing.h"

inline void __trap() { throw std::logic_error("trap"); }

// Under other names, as in emulated_cta_testing.h.
#define prefetch_map ptx_prefetch_map
#define load_box ptx_load_box
#define store_box ptx_store_box
#define publish_shared_writes ptx_publish_shared_writes
#define publish_global_writes ptx_publish_global_writes
#define close_store_group ptx_close_store_group
#define await_stores_read ptx_await_stores_read
#define await_stores ptx_await_stores
#include "kernels/ptx/tma.cuh"
#undef prefetch_map
#undef load_box
#undef store_box
#undef publish_shared_writes
#undef publish_global_writes
#undef close_store_group
#undef await_stores_read
#undef await_stores
#define init_barrier ptx_init_barrier
#define publish_barriers ptx_publish_barriers
#define arrive_expecting ptx_arrive_expecting
#define arrive_when_copied ptx_arrive_when_copied
#define arrive ptx_arrive
#define arrive_remote ptx_arrive_remote
#define has_ended ptx_has_ended
#define await ptx_await
#include "kernels/ptx/mbarrier.cuh"
#undef init_barrier
#undef publish_barriers
#undef arrive_expecting
#undef arrive_when_copied
#undef arrive
#undef arrive_remote
#undef has_ended
#undef await
#define sync_threads_of ptx_sync_threads_of
#define arrive_threads_of ptx_arrive_threads_of
#define any_of_threads ptx_any_of_threads
#define give_registers ptx_give_registers
#define take_registers ptx_take_registers
#define store_matrices ptx_store_matrices
#define store_matrices_transposed ptx_store_matrices_transposed
#include "kernels/ptx/warpgroup.cuh"
#undef sync_threads_of
#undef arrive_threads_of
#undef any_of_threads
#undef give_registers
#undef take_registers
#undef store_matrices
#undef store_matrices_transposed
#define wgmma_fence ptx_wgmma_fence
#define close_product_group ptx_close_product_group
#define await_products ptx_await_products
#define fence_registers ptx_fence_registers
#define multiply_shared ptx_multiply_shared
#define multiply_registers ptx_multiply_registers
#define start_multiply_int8 ptx_start_multiply_int8
#define multiply_int8 ptx_multiply_int8
#define multiply_codes_if ptx_multiply_codes_if
#include "kernels/ptx/wgmma.cuh"
#undef wgmma_fence
#undef close_product_group
#undef await_products
#undef fence_registers
#undef multiply_shared
#undef multiply_registers
#undef start_multiply_int8
#undef multiply_int8
#undef multiply_codes_if

namespace attnbench::cuda {

/// Beside the CTA under way: its barriers, copies and products.
class EmulatedHopper {
 public:
  struct Barrier {
    std::uint32_t arrivals = 0;  // that end a phase
    std::uint32_t pending = 0;
    std::int64_t bytes = 0;
    std::uint32_t phase = 0;
  };
  using Work = std::function<void()>;
  struct Products {
    std::vector<Work> open;
    std::deque<std::vector<Work>> closed;
  };

  Barrier& barrier(std::uint32_t address) {
    const OwnAccesses own;
    return barriers_[address];
  }
  void count(Barrier& barrier, std::uint32_t arrivals, std::int64_t bytes) {
    publish_to(&barrier);
    const OwnAccesses own;
    if (arrivals > barrier.pending) throw std::logic_error("more arrivals than a phase has");
    barrier.pending -= arrivals;
    barrier.bytes += bytes;
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.pending = barrier.arrivals;
    ++barrier.phase;
    running_cta->has_progressed();
  }
  void queue_copy(Work copy) {
    publish_to(&copies_);
    const OwnAccesses own;
    copies_.push_back(std::make_unique<Work>(std::move(copy)));
  }
  /// By a copy: what was done before any was asked for.
  void observe_requests() const { observe(&copies_); }
  /// The last copy that was queued arrives; whether there was one.
  bool finish_copy() {
    const OwnAccesses own;
    if (copies_.empty()) return false;
    const std::unique_ptr<Work> copy = std::move(copies_.back());
    copies_.pop_back();
    copy_engine_.act(*copy);
    running_cta->has_progressed();
    return true;
  }
  Products& products() {
    const OwnAccesses own;
    return products_[threadIdx.x];
  }
  /// Copies out of shared memory of this thread, by groups.
  Products& stores() {
    const OwnAccesses own;
    return stores_[threadIdx.x];
  }
  /// Whether the barrier's phase of this parity is over.
  bool has_passed(Barrier& barrier, std::uint32_t parity) const {
    const OwnAccesses own;
    return barrier.phase % 2 != parity;
  }
  bool has_open_work() const {
    for (const auto* all : {&products_, &stores_}) {
      for (const auto& [thread, work] : *all) {
        if (!work.open.empty() || !work.closed.empty()) return true;
      }
    }
    return !copies_.empty();
  }
  /// any_of_threads(): what was said at each of a barrier's calls, which every thread counts.
  bool& said(int number, bool first) {
    const OwnAccesses own;
    int& calls = calls_[{number, static_cast<int>(threadIdx.x)}];
    if (first) ++calls;
    return said_[{number, calls}];
  }

 private:
  std::map<std::uint32_t, Barrier> barriers_;
  std::vector<std::unique_ptr<Work>> copies_;
  Agent copy_engine_;
  std::map<unsigned, Products> products_;
  std::map<unsigned, Products> stores_;
  std::map<std::pair<int, int>, int> calls_;
  std::map<std::pair<int, int>, bool> said_;
};
inline EmulatedHopper* running_hopper = nullptr;
inline void run_with(EmulatedHopper& hopper) {
  const OwnAccesses own;
  running_hopper = &hopper;
}
/// Beside the CTAs of a cluster, by rank.
inline std::vector<EmulatedHopper*> cluster_hoppers;

/// The kernel's map in the place of the driver's: a pointer to what the host says about it.
inline attn::TensorMap emulated_map(const TensorMap& map) {
  attn::TensorMap encoded{};
  const TensorMap* const at = &map;
  std::memcpy(encoded.words, &at, sizeof at);
  return encoded;
}

}  // namespace attnbench::cuda

namespace attn {

inline int span_of_map(const attnbench::TensorMap& map) {
  if (map.swizzle == attnbench::TensorSwizzle::k128Bytes) return 128;
  return map.swizzle == attnbench::TensorSwizzle::k64Bytes ? 64 : 32;
}

inline void prefetch_map(const TensorMap&) {}
inline void publish_shared_writes() {}
inline void publish_global_writes() {}
inline void publish_barriers() {}
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}

inline void init_barrier(u32 barrier, u32 arrivals) {
  auto& of_barrier = attnbench::cuda::running_hopper->barrier(of_own(barrier));
  const attnbench::cuda::OwnAccesses own;
  of_barrier = {arrivals, arrivals, 0, 0};
}
inline void arrive(u32 barrier) {
  auto& hopper = *attnbench::cuda::running_hopper;
  hopper.count(hopper.barrier(of_own(barrier)), 1, 0);
}
/// Copies of copy_async() have been made by then: the emulation makes them at once.
inline void arrive_when_copied(u32 barrier) { arrive(barrier); }
inline void arrive_expecting(u32 barrier, u32 bytes) {
  auto& hopper = *attnbench::cuda::running_hopper;
  hopper.count(hopper.barrier(of_own(barrier)), 1, bytes);
}
/// Copies of threads are done at once.
inline void arrive_after_copies(u32 barrier) { arrive(barrier); }
inline void await(u32 barrier, u32 parity) {
  auto& hopper = *attnbench::cuda::running_hopper;
  auto& of_barrier = hopper.barrier(of_own(barrier));
  while (!hopper.has_passed(of_barrier, parity)) {
    if (!hopper.finish_copy()) attnbench::cuda::running_cta->let_others();
  }
  attnbench::cuda::observe(&of_barrier);
}

/// At addresses of in_cta(). What is sent comes at once.
inline void arrive_remote(u32 barrier) {
  auto& hopper = *attnbench::cuda::cluster_hoppers.at(barrier >> 24);
  hopper.count(hopper.barrier(barrier & 0xFFFFFFu), 1, 0);
}
inline void send_words(u32 address, const u32 (&words)[4], u32 barrier) {
  if (address % 16 != 0) throw std::logic_error("a store off 16 bytes");
  if (address >> 24 != barrier >> 24) throw std::logic_error("a barrier of another CTA");
  const u32 rank = address >> 24;
  unsigned char* const shared = attnbench::cuda::running_cluster->ctas.at(rank)->shared();
  std::memcpy(shared + (address & 0xFFFFFFu), words, sizeof words);
  auto& hopper = *attnbench::cuda::cluster_hoppers.at(rank);
  hopper.count(hopper.barrier(barrier & 0xFFFFFFu), 0, -std::int64_t{sizeof words});
}

/// What a map says, of a box of `kRank` dimensions at `shared`.
template <int kRank>
const attnbench::TensorMap& described_map(const TensorMap& map, u32 shared) {
  const attnbench::TensorMap* described = nullptr;
  std::memcpy(&described, map.words, sizeof described);
  if (described->rank != kRank) throw std::logic_error("a map of another rank");
  const std::string misfit = attnbench::tensor_map_misfit(*described);
  if (!misfit.empty()) throw std::logic_error(misfit);
  const bool is_aligned = shared % static_cast<u32>(span_of_map(*described) * 8) == 0;
  if (!is_aligned) throw std::logic_error("a box off its swizzle");
  return *described;
}
/// Calls move(element in the tensor, or null outside of it; its place in shared memory; bytes) for
/// every element of a box.
template <int kRank, class Move>
void for_each_of_box(const attnbench::TensorMap& host, const BoxAt<kRank>& box, u32 shared,
                     const Move& move) {
  const int span = span_of_map(host);
  const u32 size = attnbench::dtype_size(host.dtype) == 1 ? 1 : 2;
  for (u32 i = 0; i < static_cast<u32>(host.box_bytes()); i += size) {
    std::int64_t rest = i / size;
    std::int64_t offset = 0;
    bool inside = true;
    for (std::size_t d = 0; d < kRank; ++d) {
      const std::int64_t index = box.at[d] + rest % host.box[d];
      rest /= host.box[d];
      inside = inside && index >= 0 && index < host.extents[d];
      offset += index * (d == 0 ? std::int64_t{size} : host.strides[d]);
    }
    char* const place = const_cast<char*>(static_cast<const char*>(host.data)) + offset;
    move(inside ? place : nullptr,
         attnbench::cuda::running_cta->shared() + attnbench::cuda::exchanged(shared + i, span),
         size);
  }
}

template <int kRank>
void load_box(u32 to, const TensorMap& map, const BoxAt<kRank>& from, u32 counted,
              unsigned long long) {
  const u32 to_shared = of_own(to);
  const u32 barrier = of_own(counted);
  const attnbench::TensorMap& host = described_map<kRank>(map, to_shared);
  attnbench::cuda::running_hopper->queue_copy([=, &host] {
    attnbench::cuda::running_hopper->observe_requests();
    for_each_of_box(host, from, to_shared, [](const char* element, auto* shared, u32 size) {
      const u16 zero = 0;
      std::memcpy(shared, element == nullptr ? static_cast<const void*>(&zero) : element, size);
    });
    auto& hopper = *attnbench::cuda::running_hopper;
    hopper.count(hopper.barrier(barrier), 0, -std::int64_t{host.box_bytes()});
  });
}

/// As late as can be: when its thread waits until its shared memory was read.
template <int kRank>
void store_box(const TensorMap& map, const BoxAt<kRank>& to, u32 from_shared) {
  const u32 own = of_own(from_shared);
  const attnbench::TensorMap& host = described_map<kRank>(map, own);
  attnbench::cuda::running_hopper->stores().open.push_back([=, &host] {
    for_each_of_box(host, to, own, [](char* element, const auto* shared, u32 size) {
      if (element != nullptr) std::memcpy(element, shared, size);
    });
  });
}
inline void close_store_group() {
  auto& stores = attnbench::cuda::running_hopper->stores();
  stores.closed.push_back(std::move(stores.open));
  stores.open.clear();
}
template <int kPending>
void await_stores_read() {
  auto& closed = attnbench::cuda::running_hopper->stores().closed;
  for (; closed.size() > kPending; closed.pop_front()) {
    for (const auto& store : closed.front()) store();
  }
}

inline void sync_threads_of(int number, int threads) {
  attnbench::cuda::running_cta->meet_at(number, threads);
}
inline void arrive_threads_of(int number, int threads) {
  attnbench::cuda::running_cta->meet_at(number, threads, false);
}
inline bool any_of_threads(bool mine, int number, int threads) {
  auto& hopper = *attnbench::cuda::running_hopper;
  {
    bool& said = hopper.said(number, true);
    const attnbench::cuda::OwnAccesses own;
    said = said || mine;
  }
  attnbench::cuda::running_cta->meet_at(number, threads);
  const bool& said = hopper.said(number, false);
  const attnbench::cuda::OwnAccesses own;
  return said;
}

inline void store_matrices(u32 address, const u32 (&from)[4]) {
  struct Given {
    u32 address;
    u32 words[4];
  };
  const auto all =
      attnbench::cuda::running_cta->exchange(Given{address, {from[0], from[1], from[2], from[3]}});
  const u32 lane = threadIdx.x % 32;
  for (u32 m = 0; m < 4; ++m) {
    std::memcpy(own_memory(all[8 * m + lane / 4].address) + lane % 4 * 4, &from[m], 4);
  }
}

inline void store_matrices_transposed(u32 address, const u32 (&from)[4]) {
  struct Given {
    u32 address;
  };
  const auto all = attnbench::cuda::running_cta->exchange(Given{address});
  const u32 lane = threadIdx.x % 32;
  for (u32 m = 0; m < 4; ++m) {
    for (u32 i = 0; i < 2; ++i) {
      const u16 element = static_cast<u16>(from[m] >> 16 * i);
      std::memcpy(own_memory(all[8 * m + lane % 4 * 2 + i].address) + lane / 4 * 2, &element, 2);
    }
  }
}

inline void wgmma_fence() {}
template <int kBlocks>
void fence_registers(float (&)[kBlocks][4]) {}
template <int kBlocks>
void fence_registers(int (&)[kBlocks][4]) {}
inline void close_product_group() {
  auto& products = attnbench::cuda::running_hopper->products();
  products.closed.push_back(std::move(products.open));
  products.open.clear();
}
template <int kPending>
void await_products() {
  auto& products = attnbench::cuda::running_hopper->products();
  const bool waits = products.closed.size() > kPending;
  while (products.closed.size() > kPending) {
    const auto group = std::move(products.closed.front());
    products.closed.pop_front();
    for (const auto& product : group) product();
  }
  // A warp is through with its operands as one.
  if (attnbench::cuda::kFindsRaces && waits) attnbench::cuda::running_cta->exchange(0);
}

template <Element kElement, int kBlocks>
void multiply_shared(float (&d)[kBlocks][4], u64 a, u64 b, u32 adds) {
  float(*const to)[4] = d;
  const int lane = static_cast<int>(threadIdx.x % 128);
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand left(a);
    const attnbench::cuda::EmulatedOperand right(b);
    constexpr int kDepth = attnbench::cuda::kProductDepth<kElement>;
    using Code = attnbench::cuda::ElementCode<kElement>;
    double rows[2][kDepth];
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 32 * 16 + half * 8 + lane % 32 / 4;
      for (int k = 0; k < kDepth; ++k) {
        rows[half][k] = attnbench::cuda::number_of<kElement>(left.along<Code>(row, k));
      }
    }
    for (int n = 0; n < kBlocks; ++n) {
      for (int i = 0; i < 2; ++i) {
        double terms[2][kDepth];
        for (int k = 0; k < kDepth; ++k) {
          const double x =
              attnbench::cuda::number_of<kElement>(right.along<Code>(n * 8 + lane % 4 * 2 + i, k));
          terms[0][k] = rows[0][k] * x;
          terms[1][k] = rows[1][k] * x;
        }
        for (int half = 0; half < 2; ++half) {
          float& sum = to[n][half * 2 + i];
          sum = attnbench::cuda::sum_of_products<kElement>(adds != 0 ? double{sum} : 0.0,
                                                           terms[half]);
        }
      }
    }
  });
}

/// Sums of a step of int8 codes, added to what `d` holds then where kAdds.
template <bool kAdds, int kBlocks>
void queue_int8(int (&d)[kBlocks][4], u64 a, u64 b) {
  int(*const to)[4] = d;
  const int lane = static_cast<int>(threadIdx.x % 128);
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    const attnbench::cuda::EmulatedOperand left(a);
    const attnbench::cuda::EmulatedOperand right(b);
    for (int n = 0; n < kBlocks; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 32 * 16 + i / 2 * 8 + lane % 32 / 4;
        const int column = n * 8 + lane % 4 * 2 + i % 2;
        int sum = kAdds ? to[n][i] : 0;
        for (int k = 0; k < 32; ++k) {
          sum += left.along<signed char>(row, k) * right.along<signed char>(column, k);
        }
        to[n][i] = sum;
      }
    }
  });
}
template <int kBlocks>
void start_multiply_int8(int (&d)[kBlocks][4], u64 a, u64 b) {
  queue_int8<false>(d, a, b);
}
template <int kBlocks>
void multiply_int8(int (&d)[kBlocks][4], u64 a, u64 b) {
  queue_int8<true>(d, a, b);
}

template <Element kElement, bool kAdds = true, int kBlocks>
void multiply_registers(float (&d)[kBlocks][4], const u32 (&a)[4], u64 b) {
  float(*const to)[4] = d;
  const u32* const from = a;
  const int lane = static_cast<int>(threadIdx.x % 128);
  attnbench::cuda::running_hopper->products().open.push_back([=] {
    struct Fragment {
      u32 words[4];
    };
    const auto lanes =
        attnbench::cuda::running_cta->exchange(Fragment{{from[0], from[1], from[2], from[3]}});
    const attnbench::cuda::EmulatedOperand right(b);
    constexpr int kDepth = attnbench::cuda::kProductDepth<kElement>;
    constexpr int kOfWord = kDepth / 8;  // codes of a register
    using Code = attnbench::cuda::ElementCode<kElement>;
    double rows[2][kDepth];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < kDepth; ++k) {
        const int in_half = k % (kDepth / 2);
        const auto other = static_cast<std::size_t>(lane % 32 / 4 * 4 + in_half / kOfWord);
        const u32 word = lanes[other].words[k / (kDepth / 2) * 2 + half];
        const int bit = in_half % kOfWord * 8 * static_cast<int>(sizeof(Code));
        rows[half][k] = attnbench::cuda::number_of<kElement>(static_cast<Code>(word >> bit));
      }
    }
    for (int n = 0; n < kBlocks; ++n) {
      for (int i = 0; i < 2; ++i) {
        double terms[2][kDepth];
        for (int k = 0; k < kDepth; ++k) {
          const int column = n * 8 + lane % 4 * 2 + i;
          const double x =
              kElement == Element::kE4M3
                  ? attnbench::cuda::number_of<kElement>(right.along<Code>(column, k))
                  : attnbench::cuda::number_of<kElement>(right.across<Code>(k, column));
          terms[0][k] = rows[0][k] * x;
          terms[1][k] = rows[1][k] * x;
        }
        for (int half = 0; half < 2; ++half) {
          float& sum = to[n][half * 2 + i];
          sum = attnbench::cuda::sum_of_products<kElement>(kAdds ? double{sum} : 0.0, terms[half]);
        }
      }
    }
  });
}

template <int kBlocks>
void multiply_codes_if(float (&d)[kBlocks][4], const u32 (&a)[4], u64 b, u32 adds) {
  if (adds != 0) {
    multiply_registers<Element::kE4M3>(d, a, b);
  } else {
    multiply_registers<Element::kE4M3, false>(d, a, b);
  }
}

}  // namespace attn
