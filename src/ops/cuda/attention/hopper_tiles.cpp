#include "ops/cuda/attention/hopper_tiles.h"

#include <algorithm>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/attention/hopper_options.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

constexpr int kLeastStages = 2;
constexpr int kMostStages = 4;

// With tiles beside, whose two stages (HopperPlan::beside) are 64 KiB. One NVIDIA H200, 2026-11-28,
// 60q1s4k_4q1ks3k / 32q1s2k_q2k: three stages of 64 keys 424 and 110 us, two 435 and 108, two of 80
// 426 and 116, two of 96 449 and 122; one stage beside takes 5 % longer.
constexpr int kBesideTileN = 64;
constexpr int kStagesBeside = 3;
constexpr int kMostTileNBeside = 128;  // consumer_registers_beside() leaves others too few

/// Where tiles of prompts go through so many keys, they are done in the forms of long prompts
/// (HopperPlan::bounds and unrolled). One NVIDIA H200, 2026-11-30, without and with them:
/// 128q1s1k_2q2ks8k 800 and 786 us, 256q1s512_q8k 862 and 848; 32q1s2k_q2k 109 and 115. Maxima by
/// integers alone where there are tiles beside: 128 requests over 4,096 shared keys and 128 of
/// their own 46.2 and 45.6 (45.3), 256 of them 73.4 and 72.5, 60q1s4k_4q1ks3k 420 either way; in
/// cascades without tiles beside, 16 and 64 requests 20.6 and 21.1, 36.4 and 38.2.
constexpr int kLongTileKeys = 4096;
constexpr int kFewListColumns = 64;  // beside which they spill 192 bytes, and were not measured

/// Keys of a tile beside so many consumers: as of hopper_prefill's tables, which say why.
int tile_n_for(const attn::AttendParams& params, int consumers, bool ahead, bool scales_first,
               bool has_parts) {
  const int columns = params.head_size;
  const int v_columns = params.v_head_size;
  // Of a cascade most tiles have few keys: 128 requests over 4,096 shared keys and 128 of their own
  // take 53.6 us with four stages of 64, 57.1 with two of 128 (one NVIDIA H200, 2026-11-28).
  if (consumers == 2 && has_parts && columns > 64) return 64;
  if (consumers == 2) return columns <= 128 && v_columns <= 128 ? 128 : 64;
  if (columns <= 64 && v_columns <= 64) return scales_first || ahead ? 96 : 128;
  return columns <= 128 && v_columns <= 96 ? 96 : 80;
}

/// The most stages that fit, beside the queries of two tiles where they come ahead. Why not two,
/// which do for tiles of many rows: one multiprocessor has to draw three times its share of the
/// memory for tiles of few, and what is on its way is what it has places for.
int stages_for(const Target& target, attn::HopperTile tile) {
  for (tile.stages = kMostStages; tile.stages > kLeastStages; --tile.stages) {
    const int bytes = attn::hopper_layout_of(tile, tile.ahead ? 2 : 1).total;
    if (bytes <= target.max_shared_bytes) break;
  }
  return tile.stages;
}

bool has_option(std::string_view options, std::string_view name) {
  return fmt::format(":{}", options).find(fmt::format(":{}=", name)) != std::string::npos;
}

/// Warps that share a tile beside the consumers.
int warps_of_tile(const HopperPlan& plan) { return plan.shares ? attn::kBesideWarps : 1; }

/// Why no warps beside the consumers can do tiles of few rows; empty where they can.
std::string beside_misfit(const attn::AttendParams& params) {
  const auto is_whole = [](int columns) { return columns % 64 == 0 && columns <= 128; };
  if (!is_whole(params.head_size) || !is_whole(params.v_head_size)) {
    return fmt::format("head sizes {} and {}: beside the consumers there is room for 64 and 128",
                       params.head_size, params.v_head_size);
  }
  return hopper_ahead_misfit(params);
}

std::string tiles_call_misfit(const Target& target, const AttendCall& call) {
  if (call.operation != AttendOperation::kTiles) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  return hopper_tiles_misfit(target, *call.params, *call.list);
}

void launch_tiles(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const attn::TileListParams& list = *call.list;
  const HopperPlan plan =
      hopper_tiles_plan(launcher.target(), params, list,
                        forced_options(launcher.forced_kernel(), kHopperTilesCandidate.name));
  const AttendKernel kernel = hopper_tiles_kernel(params, list, plan);
  if (kernel.shared_bytes > launcher.target().max_shared_bytes) {
    fail(ErrorKind::kUnsupported,
         "kernel hopper_tiles: {}: {} bytes of shared memory, {} are there", plan.reason,
         kernel.shared_bytes, launcher.target().max_shared_bytes);
  }
  launch(launcher, kernel.spec, hopper_tiles_shape(kernel, list, plan), params,
         hopper_key_map(params, plan), hopper_value_map(params, plan),
         // A kernel that does not read it takes any map.
         plan.tile.ahead ? hopper_listed_query_map(params, list) : hopper_key_map(params, plan),
         list.parts.num_splits <= 1 && stores_boxes(params, plan) ? hopper_output_map(params)
                                                                  : hopper_key_map(params, plan),
         list);
}

}  // namespace

TensorMap hopper_listed_query_map(const attn::AttendParams& params,
                                  const attn::TileListParams& list) {
  if (list.parts.num_splits <= 1) return hopper_query_map(params);
  return hopper_query_map(params, list.parts.num_tokens);
}

TileUse hopper_beside_use(const attn::AttendParams& params, std::string_view options) {
  if (!beside_misfit(params).empty()) return TileUse::kNever;
  if (!has_option(options, "beside")) {
    // What asks for another way of going about tiles.
    const bool is_other = has_option(options, "few") || has_option(options, "persistent") ||
                          has_option(options, "ahead");
    return is_other ? TileUse::kNever : TileUse::kWhereItPays;
  }
  return hopper_plan(params, options).beside > 0 ? TileUse::kAlways : TileUse::kNever;
}

/// With tiles beside: two consumers, which leave registers and shared memory to others.
static void plan_beside(const attn::TileListParams& list, std::string_view options,
                        HopperPlan& plan) {
  plan.tile.ahead = plan.persistent = true;
  plan.few = false;
  plan.slopes = 0;
  plan.tile.slope_products = false;
  plan.tile.beside = plan.beside;
  if (!has_option(options, "tile_n")) plan.tile.tile_n = kBesideTileN;
  if (plan.tile.tile_n > kMostTileNBeside) {
    fail(ErrorKind::kUnsupported,
         "kernel hopper_tiles: tile_n={}: {} keys at most with tiles beside", plan.tile.tile_n,
         kMostTileNBeside);
  }
  if (!has_option(options, "stages")) plan.tile.stages = kStagesBeside;
  // Where there are more tiles than warps, each warp for itself: nobody then waits for others, nor
  // for what they put together.
  if (!has_option(options, "shares")) {
    const bool is_many = list.num_beside > list.num_ctas * attn::kBesideWarps;
    plan.shares = !is_many || list.parts.num_splits <= 1;
  }
}

HopperPlan hopper_tiles_plan(const Target& target, const attn::AttendParams& params,
                             const attn::TileListParams& list, std::string_view options) {
  HopperPlan plan = hopper_plan(params, options);
  const int consumers = list.tile_rows / attn::kConsumerRows;
  // The tiles of a cascade are short, and their starts would count. Mixed batches come out even: a
  // CTA for each tile or CTAs that draw them 427 and 426 us for 60q1s4k_4q1ks3k, 124 and 122 for
  // 32q1s2k_q2k, 779 and 798 for 128q1s1k_2q2ks8k (one NVIDIA H200, 2026-11-28).
  const std::string ahead_misfit = hopper_ahead_misfit(params);
  if (!has_option(options, "persistent")) {
    plan.persistent = list.parts.num_splits > 1 && ahead_misfit.empty();
  }
  // A CTA for each tile has no next one; whoever stays draws them, which is the producer's way of
  // working ahead.
  if (!has_option(options, "ahead")) plan.tile.ahead = plan.persistent;
  plan.persistent = plan.tile.ahead;
  if (plan.persistent && !ahead_misfit.empty()) {
    fail(ErrorKind::kUnsupported, "kernel hopper_tiles: persistent=1: {}", ahead_misfit);
  }
  plan.cap = 0;  // what its forms need comes with a grid
  plan.fits_tiles = false;
  plan.tail = false;
  if (!has_option(options, "slopes")) {  // not measured with a list
    plan.slopes = 0;
    plan.tile.slope_products = false;
  }
  const bool is_long = list.most_keys >= kLongTileKeys && list.num_beside == 0 &&
                       !plan.persistent && params.head_size > kFewListColumns;
  const bool is_beside = list.num_beside > 0 && params.head_size > kFewListColumns;
  const HopperPlan alone = is_long || is_beside ? hopper_plan(params, "ahead=0") : HopperPlan{};
  if (!has_option(options, "bounds")) plan.bounds = alone.bounds;
  if (!has_option(options, "unroll")) plan.unrolled = is_long && alone.unrolled && alone.cap == 0;
  choose_transform(params, plan);
  plan.tile.consumers = consumers;
  if (!has_option(options, "tile_n")) {
    plan.tile.tile_n = tile_n_for(params, consumers, plan.tile.ahead, plan.scales_first,
                                  list.parts.num_splits > 1);
  }
  if (!has_option(options, "stages")) plan.tile.stages = stages_for(target, plan.tile);
  if (list.num_beside > 0) {
    plan_beside(list, options, plan);
    choose_transform(params, plan);
  }
  plan.ping_pong = false;
  plan.late_output = false;
  plan.tile.line = 0;  // of ragged keys
  plan.fixed_base = false;
  plan.reason =
      fmt::format("{} tiles of {} rows by {} keys, {} stages, {}", list.num_tiles - list.num_beside,
                  list.tile_rows, plan.tile.tile_n, plan.tile.stages,
                  plan.stays() ? "drawn by CTAs, queries ahead" : "a CTA each");
  if (list.num_beside > 0) {
    plan.reason +=
        fmt::format("; beside them {} tiles of at most {} rows, {} stages of 16 keys, a tile {}",
                    list.num_beside, attn::kMostFewRows, plan.tile.beside,
                    plan.shares ? "by four warps" : "a warp");
  }
  return plan;
}

std::string hopper_tiles_misfit(const Target& target, const attn::AttendParams& params,
                                const attn::TileListParams& list) {
  if (!is_paged(params)) return "ragged keys: a list names pages";
  if (params.score.mm_ranges != nullptr) {
    return "bidirectional ranges, which reach past the keys of a tile";
  }
  if (size_of_element(params.query_element) != 2 || size_of_element(params.kv.element) != 2) {
    return fmt::format("{} queries over {} keys: it multiplies elements of 16 bits",
                       short_name(params.query_element), short_name(params.kv.element));
  }
  if (list.tile_rows != 2 * attn::kConsumerRows && list.tile_rows != 3 * attn::kConsumerRows) {
    return fmt::format("tiles of {} rows: it takes 128 or 192", list.tile_rows);
  }
  if (std::string reason = hopper_prefill_misfit(target, params); !reason.empty()) return reason;
  if (list.tile_rows == 192 && (params.head_size > 192 || params.v_head_size > 128)) {
    return fmt::format("192 rows of head sizes {} and {}: the registers of three consumers",
                       params.head_size, params.v_head_size);
  }
  if (list.num_beside > 0) {
    if (list.tile_rows != 2 * attn::kConsumerRows) {
      return fmt::format("tiles of {} rows, and others beside them: it takes 128", list.tile_rows);
    }
    if (std::string reason = beside_misfit(params); !reason.empty()) return reason;
  }
  const HopperPlan plan = hopper_tiles_plan(target, params, list);
  const int bytes = attn::hopper_layout(plan.tile).total;
  return bytes <= target.max_shared_bytes
             ? ""
             : fmt::format("{} bytes of shared memory are needed, {} are there", bytes,
                           target.max_shared_bytes);
}

AttendKernel hopper_tiles_kernel(const attn::AttendParams& params, const attn::TileListParams& list,
                                 const HopperPlan& plan) {
  const bool has_parts = list.parts.num_splits > 1;
  AttendKernel kernel = hopper_prefill_kernel(params, plan);
  kernel.spec.source = "attention/hopper/tiles.cuh";
  kernel.spec.function = "attn::hopper_tiles";
  kernel.spec.constants.emplace_back("bool kTileList", "true");
  kernel.spec.constants.emplace_back("bool kParts", spec_flag(has_parts));
  kernel.spec.constants.emplace_back("bool kFew", spec_flag(plan.few));
  kernel.spec.constants.emplace_back("int kBeside", std::to_string(plan.tile.beside));
  if (plan.tile.beside > 0) {
    kernel.spec.constants.emplace_back("int kSharing", std::to_string(warps_of_tile(plan)));
  }
  // Three consumers hold O, S and P to the last register: up to 40 bytes more were seen.
  if (!plan.stays()) kernel.spec.allowed_spill_bytes += 40;
  kernel.spec.name =
      fmt::format("hopper_tiles{} {}x{}{}{}", problem_name(params), plan.tile_rows(),
                  plan.tile.tile_n, has_parts ? " parts" : "", plan.stays() ? "" : " a CTA each");
  if (plan.tile.beside > 0) {
    kernel.spec.name += fmt::format(", beside by {}x{}", warps_of_tile(plan), plan.tile.beside);
  }
  return kernel;
}

LaunchShape hopper_tiles_shape(const AttendKernel& kernel, const attn::TileListParams& list,
                               const HopperPlan& plan) {
  LaunchShape shape;
  const int beside_of_cta = attn::kBesideWarps / warps_of_tile(plan);
  const int useful =
      std::max(list.num_bundles, (list.num_beside + beside_of_cta - 1) / beside_of_cta);
  shape.grid_x = plan.stays() ? std::min(list.num_ctas, useful) : list.num_tiles;
  shape.threads = kernel.threads;
  shape.shared_bytes = kernel.shared_bytes;
  return shape;
}

const AttendCandidate kHopperTilesCandidate{"hopper_tiles", tiles_call_misfit, nullptr,
                                            launch_tiles, hopper_tiles_options_misfit};

}  // namespace attnbench::cuda
