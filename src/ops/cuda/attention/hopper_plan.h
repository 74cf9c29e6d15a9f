// How kernels/attention/hopper goes about a problem: which tile it gets and why, from tables of
// tiles by head size and type, and the options by which a command overrides them. Pure functions of
// the parameters and of what was asked for by name, so that choices are tested, and printed by
// `explain`, without a GPU. hopper_prefill.h makes the launch of it.
#pragma once

#include <string>
#include <string_view>

#include "ops/cuda/attention/spec.h"

#include "kernels/attention/hopper/layout.cuh"

namespace attnbench::cuda {

/// How the kernel goes about a problem.
struct HopperPlan {
  attn::HopperTile tile{};
  bool ping_pong = false;    // warpgroups take turns at the tensor cores
  bool persistent = false;   // attn::hopper_ctas() a multiprocessor, each with a row tile a round;
                             // else one CTA each
  bool late_output = false;  // stored while the next row tile has begun; with tile.ahead
  bool fixed_base = false;   // shared memory is taken to start at attn::kFirstSharedAddress
  int promote = 0;           // e4m3: tiles whose sums may stay in the tensor cores; 0 = all
  int cap = 0;  // form of a soft cap, attention/hopper/soft_cap.cuh; 0: transform_scores()
  // Of linear ALiBi: how many a thread's two rows have; 0: transform_scores(). They are added to
  // scores by fused multiplications, or with tile.slope_products by the tensor cores.
  int slopes = 0;
  bool scales_first = false;  // scores are transformed by transform_scores()
  bool fits_tiles = false;    // windows over pages: tiles of keys end with those that rows see
  bool bounds = false;        // maxima of scores by integers: bound_scores() of hopper/softmax.cuh
  // Weights are computed before a product is waited for, which ptxas would do the other way round:
  // order_after() of ptx/wgmma.cuh.
  bool ordered = false;
  // e4m3: columns whose sums lie beside the output, piece by piece of these, while weights of the
  // next tile are computed; 0: all up to 128, wider ones by pieces after the weights.
  int sums = 0;
  // e4m3: a tile's values are multiplied when its weights are there, with no product of another
  // tile beside it, so that sums of all columns take the registers of the scores.
  bool apart = false;
  int group = 1;      // attn::HopperGrid
  bool tail = false;  // row tiles left over at the end are cut: attn::whole_tiles()
  bool reverse = false;
  bool add_floats = false;    // int8 products become f32 by additions, not by conversions
  bool keep_columns = false;  // codes are converted by lanes that keep their columns
  bool unrolled = false;  // a copy of the main loop's step for every stage, with constant places
  bool wide = false;      // asked for by name: Ops::wide_use(); the plan itself is the same
  bool few = true;        // of a list: consumers do tiles of at most 8 rows by mma.sync
  // Of a list with tiles beside the others (TileListParams::num_beside):
  int beside = 2;      // stages of each of the warps that do them; 0: there are no such tiles
  bool shares = true;  // the four warps share each tile; else each has its own
  std::string reason;  // why this tile: "192 rows by 80 keys, 2 stages: ..."

  /// Whether a CTA goes through several row tiles.
  bool stays() const { return persistent || tile.ahead; }
  int tile_rows() const { return tile.consumers * attn::kConsumerRows; }
};

/// Why the producer cannot bring queries ahead; empty where it can.
std::string hopper_ahead_misfit(const attn::AttendParams& params);

/// Columns of values that are multiplied: of e4m3 whole steps of 16, where the rows have them. An
/// encoder's heads of 72 are padded to 80, and what comes of the padding is not written.
int multiplied_columns(const attn::AttendParams& params);

inline constexpr int kRowAlignment = 16;  // bytes, of what the copy engine and cp.async take

/// Whether output rows of 16 bits are stored 16 bytes at a time.
bool has_wide_stores(const attn::AttendParams& params);

/// The scores' way to exponents of 2, from the `cap` and `slopes` that are asked for in the plan.
void choose_transform(const attn::AttendParams& params, HopperPlan& plan);

/// The plan of a problem that fits (hopper_prefill_misfit()); `options` as above, without the name,
/// override it. Errors: E-UNSUPPORTED for an option that cannot be, or not for this problem.
HopperPlan hopper_plan(const attn::AttendParams& params, std::string_view options = {});

}  // namespace attnbench::cuda
