// Attention of many query rows on SM 9.0a (semantics §3): tensor cores by wgmma in 16 bits, e4m3 or
// int8, keys and values by the copy engine, roles for warpgroups. One warpgroup brings tiles of K
// and V through rings of stages (producer.cuh), codes of one byte by way of codes.cuh; two or three
// more compute 64 packed query rows each (consumer_items.cuh). Rows, masks and results are those of
// attention/prefill.cuh.
//
// Why wgmma: mma.sync reaches about 60 % of the tensor cores of this chip. Why so few stages: what
// binds is power and the tensor cores (79 to 91 % busy), a third stage gave 0.3 %. Measured with
// standalone experiments on one NVIDIA H200, 2026-11-22, bf16 D128 causal, TFLOP/s at 8k / 16k: two
// consumers of 64 rows and 128 keys 611 / 641; products of two tiles in work 697 / 734; bases
// raised by vote 731 / 759; three consumers and 80 keys 783 / 819. FlashAttention-3 there: 732 /
// 759.
#pragma once

#include "kernels/attention/hopper/beside.cuh"
#include "kernels/attention/hopper/codes.cuh"
#include "kernels/attention/hopper/consumer_items.cuh"
#include "kernels/attention/hopper/producer.cuh"
#include "kernels/ptx/shared.cuh"

namespace attn {

/// Where the dynamic shared memory of a kernel without static one starts on SM 9.0: what lies
/// before is the system's. Descriptors that are known at compile time cost fewer instructions.
constexpr u32 kFirstSharedAddress = 1024;

/// The roles, by warpgroup: one branch of a single if/else each, or the registers would not move.
template <class Config>
__device__ __forceinline__ void run_hopper_roles(const HopperShape<Config>& shape,
                                                 const TensorMap& keys, const TensorMap& values,
                                                 const TensorMap& queries) {
  constexpr bool kHasBeside = HopperShape<Config>::kBeside > 0;
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, thread / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    give_registers<kHasBeside
                       ? producer_registers_beside()
                       : producer_registers(Config::kConsumers, HopperShape<Config>::kCtas)>();
    const int warp = __shfl_sync(0xFFFFFFFFu, thread / 32, 0);
    // Of a list each is a comparison of its own. A table of jumps is a load from constant memory
    // that nobody has read, before the first key is asked for.
    const auto is_warp = [warp](int number) {
      return (has_tile_list<Config>() ? hidden(warp) : warp) == number;
    };
    if constexpr (HopperShape<Config>::kConverts) {
      if (warp < 2) {
        HopperConverter<Config, true>{shape, keys, warp, thread % 32}.run();
      } else {
        HopperConverter<Config, false>{shape, values, warp - 2, thread % 32}.run();
      }
    } else if (is_warp(0)) {
      HopperProducer<Config, true>{shape, keys, thread % 32}.run();
    } else if (is_warp(1)) {
      HopperProducer<Config, false> producer{shape, values, thread % 32};
      if constexpr (HopperShape<Config>::kHandsOverByValues) {
        HopperDispatcher<Config> dispatcher{shape, queries, thread % 32};
        producer.run([&](const HopperItem& item) { dispatcher.hand_over(item); });
        dispatcher.end();
      } else {
        producer.run();
      }
    } else if constexpr (HopperShape<Config>::kTransposes) {
      HopperTransposer<Config>{shape, warp - 2, thread % 32}.run();
    } else if constexpr (HopperShape<Config>::kConvertsValues) {
      HopperConverter<Config, false>{shape, values, warp - 2, thread % 32}.run();
    } else {
      if constexpr (HopperShape<Config>::kChecks) {
        if (is_warp(3)) HopperChecker<Config>{shape, thread % 32}.run();
      }
      if constexpr (Config::kAhead && !HopperShape<Config>::kHandsOverByValues) {
        if (is_warp(2)) HopperDispatcher<Config>{shape, queries, thread % 32}.run();
      }
    }
  } else if (kHasBeside && warpgroup > Config::kConsumers) {
    if constexpr (kHasBeside) {
      constexpr int kRegisters = beside_registers(Config::kTileN);
      if constexpr (kRegisters <= 128) {
        give_registers<kRegisters>();
      } else {
        take_registers<kRegisters>();
      }
      HopperBeside<Config>{shape, keys, values, thread % kWarpgroupThreads}.run();
    }
  } else {
    take_registers<kHasBeside
                       ? consumer_registers_beside(Config::kTileN)
                       : consumer_registers(Config::kConsumers, HopperShape<Config>::kCtas)>();
    // Why said for one: what is known when it is compiled names barriers one by one.
    const int consumer = Config::kConsumers == 1 ? 0 : warpgroup - 1;
    HopperItems<Config>{{{{{shape, consumer, thread % kWarpgroupThreads}}}}}.run();
  }
}

struct alignas(kHopperAlignment) HopperMemory {
  unsigned char bytes[kHopperAlignment];
};

/// What a CTA does; the parameters are those of the kernels.
template <class Config>
__device__ __forceinline__ void run_hopper(const AttendParams& params, const TensorMap& keys,
                                           const TensorMap& values, const TensorMap& queries,
                                           const TensorMap& outputs, const HopperGrid& grid,
                                           const Int8CacheWriteParams* save,
                                           const TensorMap* ropes = nullptr) {
  extern __shared__ HopperMemory hopper_memory[];
  auto* const memory = reinterpret_cast<unsigned char*>(hopper_memory);
  const u32 start = shared_address(memory);
  u32 base = (start + kHopperAlignment - 1) / kHopperAlignment * kHopperAlignment;
  if constexpr (Config::kFixedBase) {
    if (start != kFirstSharedAddress) __trap();
    base = kFirstSharedAddress;
  }
  const HopperShape<Config> shape{params,   grid, memory + (base - start), base, save, nullptr,
                                  &outputs, ropes};
  if (threadIdx.x == 0) {
    prefetch_map(keys);
    prefetch_map(values);
    if constexpr (Config::kAhead) prefetch_map(queries);
    if constexpr (HopperShape<Config>::kStoresBoxes) prefetch_map(outputs);
    if constexpr (rope_columns<Config>() > 0) prefetch_map(*ropes);
    shape.init_barriers();
  }
  shape.fill_constants();
  __syncthreads();
  run_hopper_roles<Config>(shape, keys, values, queries);
}

/// Grid: hopper_work_items() CTAs, or with kPersistent as many as there are places for. `keys` and
/// `values` describe boxes of box_rows() rows; their dimensions are, ragged: elements of a line,
/// rows, lines of a row, KV heads (elements of a row, rows, KV heads where its lines are not all
/// full); of pages: elements of a line, 8 slots, lines, eighths of a page, pages. `queries`, with
/// kAhead: elements of a line, heads, tokens, lines of a row; a box has the heads of a group and 64
/// rows. `outputs`, with kStoresBoxes: the same dimensions; a box is a line of 16 rows.
template <class Config>
__global__ void __launch_bounds__(HopperShape<Config>::kThreads, HopperShape<Config>::kCtas)
    hopper_prefill(const __grid_constant__ AttendParams params,
                   const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values,
                   const __grid_constant__ TensorMap queries,
                   const __grid_constant__ TensorMap outputs,
                   const __grid_constant__ HopperGrid grid) {
  run_hopper<Config>(params, keys, values, queries, outputs, grid, nullptr);
}

/// The same of int8 scores, where a request's rows are one tile: stores the new keys and values
/// first, each the producer that reads them (semantics §11.6), so that decoding takes one launch.
template <class Config>
__global__ void __launch_bounds__(HopperShape<Config>::kThreads, HopperShape<Config>::kCtas)
    hopper_prefill_saving(const __grid_constant__ AttendParams params,
                          const __grid_constant__ TensorMap keys,
                          const __grid_constant__ TensorMap values,
                          const __grid_constant__ TensorMap queries,
                          const __grid_constant__ TensorMap outputs,
                          const __grid_constant__ HopperGrid grid,
                          const __grid_constant__ Int8CacheWriteParams save) {
  run_hopper<Config>(params, keys, values, queries, outputs, grid, &save);
}

/// The same of contiguous keys whose last columns lie in a place of their own (rope_columns()):
/// `keys` describes those before them, `ropes` these, with the dimensions of keys of one head.
template <class Config>
__global__ void __launch_bounds__(HopperShape<Config>::kThreads, HopperShape<Config>::kCtas)
    hopper_prefill_rope(const __grid_constant__ AttendParams params,
                        const __grid_constant__ TensorMap keys,
                        const __grid_constant__ TensorMap values,
                        const __grid_constant__ TensorMap queries,
                        const __grid_constant__ TensorMap outputs,
                        const __grid_constant__ TensorMap ropes,
                        const __grid_constant__ HopperGrid grid) {
  static_assert(rope_columns<Config>() > 0);
  run_hopper<Config>(params, keys, values, queries, outputs, grid, nullptr, &ropes);
}

}  // namespace attn
