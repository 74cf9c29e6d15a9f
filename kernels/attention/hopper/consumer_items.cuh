// The items of a consumer warpgroup of the Hopper prefill kernel, one after another: its rows and
// queries, its tiles of keys (consumer.cuh), its output and LSE.
#pragma once

#include "kernels/attention/hopper/consumer.cuh"

namespace attn {

template <class Config>
struct HopperItems : HopperConsumer<Config> {
  using Consumer = HopperConsumer<Config>;
  using Place = typename Consumer::Place;
  using FewRows = typename Consumer::FewRows;
  using Plan = typename Consumer::Plan;
  using Registers = typename Consumer::Registers;
  using Shape = typename Consumer::Shape;
  using Consumer::attend;
  using Consumer::consumer;
  using Consumer::copy_query;
  using Consumer::describe;
  using Consumer::first_row;
  using Consumer::items_done;
  using Consumer::kShortcuts;
  using Consumer::leave;
  using Consumer::normalise;
  using Consumer::plan_of;
  using Consumer::query_stage;
  using Consumer::reset;
  using Consumer::shape;
  using Consumer::store_pairs;
  using Consumer::store_part;
  using Consumer::store_wide;
  using Consumer::take_slot;
  using Consumer::tile;

  /// Whether this warpgroup copies its queries itself, since they came in no box.
  __device__ __forceinline__ bool copies(const HopperItem& item) const {
    if constexpr (!Config::kAhead) return true;
    return !Shape::kCountsTokens && first_row() + kConsumerRows > item.tile.num_rows;
  }

  __device__ __forceinline__ void work(const HopperItem& item) {
    if constexpr (FewRows::kTakesFew) {
      if (item.tile.num_rows <= kMostFewRows) {
        this->attend_few(item);
        return;
      }
    }
    if constexpr (has_tile_list<Config>()) take_slot(item);
    const Plan plan = plan_of(item);
    // What is skipped first may be settled, which asks the rows, and in a list how many there are.
    const bool begins_to_skip = has_tile_list<Config>() || plan.seen.end < plan.tiles.end;
    // Of codes reset() asks whose scales they are.
    const bool describes_first = begins_to_skip || copies(item) || Shape::kCodes;
    if (describes_first) describe(item);
    if (copies(item)) copy_query();
    Registers r;
    reset(r);
    attend(
        r, plan,
        [&] {
          if (!describes_first) describe(item);
        },
        [] {});
    if constexpr (kShortcuts) {
      const bool has_rows = first_row() < tile()->num_rows;
      __syncwarp();  // the next tile comes there
      if (!has_rows) return;
    }
    put_out(r);
  }

  /// O and LSE of the item in `tile()`.
  __device__ __forceinline__ void put_out(Registers& r) const {
    normalise(r);
    if constexpr (has_parts<Config>()) {
      store_part(r.o);
    } else if constexpr (Shape::kLeavesEarly) {
      this->store_staged(r.o);
    } else if constexpr (Config::kWideStores) {
      store_wide(r.o);
    } else {
      store_pairs(r.o);
    }
  }

  /// Says that this warp is through with the item's place of queries and output.
  __device__ __forceinline__ void leave_query() const {
    if constexpr (Shape::kStoresBoxes) await_stores_read<0>();
    publish_shared_writes();  // of output rows, which the next queries overwrite
    __syncwarp();
    leave(shape.query_empty(query_stage()));
  }

  /// The output of an item is stored beside the first product of the next one, and its place is
  /// left when that one's first weights are there: by then the copy engine has read it. Why: of a
  /// prompt of 512 tokens a quarter of the time goes into outputs, during which the tensor cores
  /// have nothing to do. Why packed: in 32 bits it does not fit beside the scores to come.
  __device__ __forceinline__ void run_with_late_output() {
    typename Place::Packed packed;
    bool is_due = false;  // the output of the item before
    bool is_left = true;  // and its place
    // `items_done` says where an item's queries and output are.
    const auto store_due = [&] {
      if (!is_due) return;
      --items_done;
      store_wide(packed);
      ++items_done;
      is_due = false;
      is_left = false;
    };
    const auto leave_due = [&] {
      if (is_left) return;
      --items_done;
      leave_query();
      ++items_done;
      is_left = true;
    };
    for (;;) {
      await(shape.query_full(query_stage()), items_done / Shape::kQueryStages % 2);
      const HopperItem& item = shape.item_place(query_stage())->item;
      const bool is_last = item.tile.num_rows <= 0;
      const bool copies_query = copies(item);
      if (is_last || copies_query) store_due();
      if (is_last) break;
      if (copies_query) {
        describe(item);
        copy_query();
      }
      Registers r;
      attend(
          r, plan_of(item),
          [&] {
            store_due();
            if (Shape::kCodes && !copies_query) describe(item);
            reset(r);
            if (!Shape::kCodes && !copies_query) describe(item);
          },
          leave_due);
      normalise(r);
      Place::pack_output(r.o, packed);
      is_due = true;
      ++items_done;
    }
    leave_due();
  }

  __device__ void run() {
    // The first turn is the first warpgroup's; it counts as passed on by itself.
    if constexpr (Config::kPingPong) {
      if (consumer == 0) arrive_threads_of(kTurnBarrier, 2 * kWarpgroupThreads);
    }
    if constexpr (Config::kLateOutput) {
      run_with_late_output();
    } else if constexpr (Config::kAhead) {
      for (;;) {
        await(shape.query_full(query_stage()), items_done / Shape::kQueryStages % 2);
        const HopperItem& item = shape.item_place(query_stage())->item;
        if (item.tile.num_rows <= 0) return;
        work(item);
        if constexpr (!Shape::kLeavesEarly) leave_query();
        ++items_done;
      }
    } else {
      shape.for_each_item([&](const HopperItem& item) { work(item); });
    }
  }
};

}  // namespace attn
