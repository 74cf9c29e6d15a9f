// The checker of the Hopper prefill kernel: one warp that looks for NaN and infinities among the
// values of tiles whose keys are masked for some rows, since masked keys have weight 0 in the
// products, and 0 times NaN is NaN. It follows the producers, so that its word is there when the
// consumers come to the tile; these look after a tile themselves only where something was found.
// Why not the consumers: all of them had to meet at every masked tile, of which a short prompt has
// two in four, and could not do different things at a time.
#pragma once

#include "kernels/attention/hopper/work.cuh"
#include "kernels/ptx/packed.cuh"

namespace attn {

template <class Config>
struct HopperChecker {
  using Shape = HopperShape<Config>;
  static constexpr int kWords = Shape::kValueBytes / 16;
  /// Loads that are under way together; there are few registers.
  static constexpr int kUnroll = 4;

  const Shape& shape;
  int lane;
  Ring<Config::kStages> values{0, 0};

  /// Whether a value of the current stage is NaN or infinite; whole warps. Bytes between the rows
  /// and behind the keys of a request count too: products read them.
  __device__ __forceinline__ bool has_nonfinite() const {
    constexpr Element kElement = Shape::kProbability;
    const auto* const words = reinterpret_cast<const uint4*>(
        shape.memory + Shape::kLayout.value + values.stage * Shape::kLayout.value_bytes);
    u32 seen[2] = {};
#pragma unroll kUnroll
    for (int i = lane; i < kWords; i += 32) {
      const uint4 four = words[i];
      seen[0] = mark_nonfinite<kElement>(four.x, seen[0]);
      seen[1] = mark_nonfinite<kElement>(four.y, seen[1]);
      seen[0] = mark_nonfinite<kElement>(four.z, seen[0]);
      seen[1] = mark_nonfinite<kElement>(four.w, seen[1]);
    }
    const u32 found = nonfinite_halves<kElement>(seen[0]) | nonfinite_halves<kElement>(seen[1]);
    return __any_sync(0xFFFFFFFFu, found != 0) != 0;
  }

  /// Every stage waits for the checker too, masked or not: else the ring might come round twice
  /// while it looks at one.
  __device__ void run() {
    shape.for_each_item([&](const HopperItem& item) {
      const KeyInterval unmasked = unmasked_tiles(item.keys, item.bounds.core, Config::kTileN);
#pragma unroll 1
      for (int n = item.keys.end - 1; n >= item.keys.first; --n) {
        await(shape.value_full(values.stage), values.parity);
        const bool masked = n < unmasked.begin || n >= unmasked.end;
        const bool found = masked && has_nonfinite();
        if (lane == 0) {
          *shape.found(values.stage) = found ? 1 : 0;
          arrive(shape.value_checked(values.stage));
          arrive(shape.value_empty(values.stage));
        }
        __syncwarp();
        values.advance();
      }
    });
  }
};

}  // namespace attn
