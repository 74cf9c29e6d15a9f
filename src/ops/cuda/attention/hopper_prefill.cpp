#include "ops/cuda/attention/hopper_prefill.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "core/error.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

constexpr int kRowAlignment = 16;  // bytes, of what the copy engine and cp.async take

bool is_paged(const attn::AttendParams& params) { return params.kv.block_table != nullptr; }

/// Tiles up to a head size of keys and one of values; the first row that fits is taken.
struct TileChoice {
  int most_columns;    // D
  int most_v_columns;  // Dv
  int consumers;
  int tile_n;
  bool ping_pong;
  const char* reason;
};
/// Measured on one NVIDIA H200, 2026-11-22, with standalone experiments, bf16; TFLOP/s at 8k / 16k.
/// Three consumers have 160 registers a thread, two have 240: O, S and P (Dv / 2, tile_n / 2 and
/// tile_n / 4 of them) must leave 16 of these for the rest.
constexpr std::array kTiles = {
    // 64 columns: 192 x 128 578 / 606 causal; there the softmax takes as long as the products, and
    // turns keep the warpgroups from doing the same thing at the same time.
    TileChoice{64, 64, 3, 128, true, "the widest that three consumers hold"},
    // Not measured: S of 96 keys beside O of 96 columns takes 120 registers with P.
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    // 128 columns: 192 x 80 783 / 819 causal and 788 / 826 full, 128 x 128 731 / 759 and 753 / 755:
    // 192 rows read a third less of the L2.
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    // 256 columns: 128 x 64 803 / 833 causal, 827 / 831 full; O alone takes 128 registers.
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers"},
};
/// Up to so many packed rows of a request two consumers are taken. Why: 192 rows by 64 keys ran at
/// 370 TFLOP/s of 1,000 tokens, where 128 by 128 ran at 401: half-empty last tiles and fewer CTAs
/// than multiprocessors cost more than the L2.
constexpr std::int64_t kShortRows = 1024;
constexpr TileChoice kShortTile{
    128, 128, 2, 128, false, "of no more than 1024 rows, which 192 a tile would divide badly"};

/// K and V of a group of units should stay in the L2 (60 MB on an H200): 8 heads of 8,192 keys and
/// 128 columns, or 4 of 16,384, were the best, 32 of them 4 % slower.
constexpr std::int64_t kGroupBytes = 33'600'000;
constexpr int kMostGroup = 64;

/// Whether scores are brought to log2 units before their maximum. Why the sign: the maximum of
/// scaled scores is the scaled maximum for positive scales only.
bool scales_first(const attn::AttendParams& params) {
  const attn::ScoreParams& score = params.score;
  return score.soft_cap > 0.0f || score.alibi != attn::Alibi::kNone ||
         !(score.softmax_scale > 0.0f);
}

const TileChoice& choose_tile(const attn::AttendParams& params) {
  const auto fits = [&](const TileChoice& tile) {
    // Why: what transforms scores takes registers too; 128 keys of three consumers would spill.
    const bool has_room = !scales_first(params) || tile.consumers == 2 || tile.tile_n < 128;
    return has_room && params.head_size <= tile.most_columns &&
           params.v_head_size <= tile.most_v_columns;
  };
  // Why not where bytes may not depend on the batch: the longest request would decide.
  const bool is_short =
      params.batch_invariant == 0 && max_packed_rows(params) <= kShortRows && fits(kShortTile);
  if (is_short) return kShortTile;
  return *std::find_if(kTiles.begin(), kTiles.end() - 1, fits);
}

/// Whether rows may be blind to the last keys of a tile by more than their request's end.
bool is_causal(const attn::AttendParams& params) { return params.score.window_right >= 0; }

int group_of(const attn::AttendParams& params) {
  // Why 1: without a causal mask the row tiles of a unit are all alike, and follow one another.
  if (!is_causal(params)) return 1;
  // The host does not know how many keys there are; at least as many as rows, as a rule.
  const std::int64_t bytes =
      std::int64_t{std::max(params.max_query_len, 1)} * (params.head_size + params.v_head_size) * 2;
  int group = 1;
  while (2 * group <= kMostGroup && 2 * group * bytes <= kGroupBytes) group *= 2;
  return group;
}

/// An option of a tuning: a word and what it sets.
struct Option {
  std::string_view name;
  int least;
  int most;
  int multiple;
  void (*set)(HopperPlan& plan, int value);
};
constexpr std::array kOptions = {
    Option{"consumers", 2, 3, 1, [](HopperPlan& plan, int n) { plan.tile.consumers = n; }},
    Option{"tile_n", 64, 256, 16, [](HopperPlan& plan, int n) { plan.tile.tile_n = n; }},
    Option{"stages", 2, 4, 1, [](HopperPlan& plan, int n) { plan.tile.stages = n; }},
    Option{"ping_pong", 0, 1, 1, [](HopperPlan& plan, int n) { plan.ping_pong = n != 0; }},
    Option{"persistent", 0, 1, 1, [](HopperPlan& plan, int n) { plan.persistent = n != 0; }},
    Option{"fixed_base", 0, 1, 1, [](HopperPlan& plan, int n) { plan.fixed_base = n != 0; }},
    Option{"reverse", 0, 1, 1, [](HopperPlan& plan, int n) { plan.reverse = n != 0; }},
    Option{"group", 1, 1 << 20, 1, [](HopperPlan& plan, int n) { plan.group = n; }},
};

/// Applies the options to `plan` where there is one; what is wrong with them, or "".
std::string apply_options(std::string_view options, HopperPlan* plan) {
  while (!options.empty()) {
    const std::string_view word = options.substr(0, options.find(':'));
    options.remove_prefix(std::min(options.size(), word.size() + 1));
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    const auto option = std::find_if(kOptions.begin(), kOptions.end(),
                                     [&](const Option& o) { return o.name == name; });
    if (option == kOptions.end() || equals == std::string_view::npos) {
      std::string known;
      for (const Option& o : kOptions)
        known += fmt::format("{}{}", known.empty() ? "" : ", ", o.name);
      return fmt::format("'{}' is no option=number of it (known: {})", word, known);
    }
    int value = 0;
    const char* const end = word.data() + word.size();
    const auto read = std::from_chars(word.data() + equals + 1, end, value);
    if (read.ec != std::errc{} || read.ptr != end || value < option->least ||
        value > option->most || value % option->multiple != 0) {
      return fmt::format(
          "{}: {} to {}{} is possible", word, option->least, option->most,
          option->multiple == 1 ? "" : fmt::format(" in steps of {}", option->multiple));
    }
    if (plan != nullptr) option->set(*plan, value);
  }
  return "";
}

std::string head_misfit(const attn::AttendParams& params) {
  for (const int size : {params.head_size, params.v_head_size}) {
    if (size % 8 != 0) return fmt::format("head size {} is not a multiple of 8", size);
    if (size % 16 != 0 && is_paged(params)) {
      return fmt::format("head size {} over pages is not a multiple of 16", size);
    }
    if (size > 256) return fmt::format("head size {} is more than 256", size);
    if (size < 32) return fmt::format("head size {} is less than 32", size);
  }
  return "";
}

std::string element_misfit(const attn::AttendParams& params) {
  const attn::Element query = params.query_element;
  if (params.int8.query_scale != nullptr) return "scores of int8 codes: it multiplies 16 bits";
  if ((query != attn::Element::kBF16 && query != attn::Element::kF16) ||
      params.kv.element != query) {
    return fmt::format("{} queries over {} keys: it multiplies elements of one type of 16 bits",
                       short_name(query), short_name(params.kv.element));
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

/// What every row of one side starts on.
Alignment side_alignment(const attn::AttendParams& params, const void* data, attn::i64 token_stride,
                         attn::i64 head_stride) {
  const attn::KvParams& kv = params.kv;
  Alignment alignment;
  alignment.pointer(data).stride(token_stride, kv.element).stride(head_stride, kv.element);
  if (is_paged(params)) alignment.stride(kv.block_stride, kv.element);
  return alignment;
}

std::string row_misfit(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const int keys = std::min(
      side_alignment(params, kv.key, kv.token_stride_key, kv.head_stride_key).common_bytes(),
      side_alignment(params, kv.value, kv.token_stride_value, kv.head_stride_value).common_bytes());
  if (keys < kRowAlignment) {
    return fmt::format("rows of keys and values lie on multiples of {} bytes, {} are needed", keys,
                       kRowAlignment);
  }
  const int queries = Alignment()
                          .pointer(params.query)
                          .stride(params.query_token_stride, params.query_element)
                          .stride(params.query_head_stride, params.query_element)
                          .common_bytes();
  if (queries < kRowAlignment) {
    return fmt::format("rows of queries lie on multiples of {} bytes, {} are needed", queries,
                       kRowAlignment);
  }
  return "";
}

/// Of the copy engine's maps: heads are a dimension of their own, or lines of a row.
std::string stride_misfit(const attn::AttendParams& params, attn::i64 token_stride,
                          attn::i64 head_stride, int columns) {
  if (token_stride <= 0) return fmt::format("tokens of keys or values lie {} apart", token_stride);
  if (params.num_kv_heads == 1) return "";
  if (head_stride <= 0) return fmt::format("heads of keys or values lie {} apart", head_stride);
  const int elements = attn::operand_span(attn::padded_columns(columns)) / 2;
  if (is_paged(params) && head_stride % elements != 0) {
    return fmt::format("heads of a page lie {} elements apart, a multiple of {} is needed",
                       head_stride, elements);
  }
  return "";
}

/// 16 bytes of an output row at a time.
bool has_wide_stores(const attn::AttendParams& params) {
  return params.output_element == params.query_element &&
         Alignment()
                 .pointer(params.output)
                 .stride(params.output_token_stride, params.output_element)
                 .stride(params.output_head_stride, params.output_element)
                 .common_bytes() == kRowAlignment;
}

TensorMap side_map(const attn::AttendParams& params, const HopperPlan& plan, const void* data,
                   attn::i64 token_stride, attn::i64 head_stride, int columns) {
  // Rows and pages are not counted: the kernel names none that the request does not have.
  constexpr std::int64_t kUncounted = std::int64_t{1} << 30;
  const int span = attn::operand_span(attn::padded_columns(columns));
  const int chunks = attn::operand_chunks(attn::padded_columns(columns));
  const int rows = attn::box_rows(plan.tile);
  const std::int64_t token_bytes = token_stride * 2;
  TensorMap map;
  map.data = data;
  map.dtype = params.kv.element == attn::Element::kBF16 ? Dtype::kBF16 : Dtype::kF16;
  map.swizzle = span == 128 ? TensorSwizzle::k128Bytes
                            : (span == 64 ? TensorSwizzle::k64Bytes : TensorSwizzle::k32Bytes);
  map.promotion = columns * 2 % 256 == 0 ? TensorPromotion::k256Bytes : TensorPromotion::k128Bytes;
  if (!is_paged(params)) {
    // One head needs no stride, but the map wants one that it can take.
    const std::int64_t head_bytes = params.num_kv_heads == 1 ? token_bytes : head_stride * 2;
    if (columns != attn::padded_columns(columns)) {
      // A box a span, since what lies behind a row's columns is to be read as zeros.
      map.rank = 3;
      map.extents = {columns, kUncounted, params.num_kv_heads};
      map.strides = {2, token_bytes, head_bytes};
      map.box = {span / 2, rows, 1};
      return map;
    }
    map.rank = 4;
    map.extents = {span / 2, kUncounted, chunks, params.num_kv_heads};
    map.strides = {2, token_bytes, span, head_bytes};
    map.box = {span / 2, rows, chunks, 1};
    return map;
  }
  const std::int64_t lines = head_stride * 2 / span * (params.num_kv_heads - 1) + chunks;
  map.rank = 5;
  map.extents = {span / 2, 8, lines, params.kv.block_size / 8, kUncounted};
  map.strides = {2, token_bytes, span, 8 * token_bytes, params.kv.block_stride * 2};
  map.box = {span / 2, 8, chunks, rows / 8, 1};
  return map;
}

std::string flag(bool value) { return value ? "true" : "false"; }

std::string misfit(const Target& target, const AttendCall& call) {
  if (call.operation != AttendOperation::kWhole) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  return hopper_prefill_misfit(target, *call.params);
}

/// Why it yields to all others: it compiles, and its own code runs right on emulated threads, but
/// it has not run on a GPU yet. To make it the choice where it fits, let this return what
/// decode_yields() does: few rows are that kernel's.
std::string yields(const AttendCall& call) {
  return fmt::format("it has not been measured on a GPU and runs where it is named; {}",
                     hopper_plan(*call.params).reason);
}

void launch_hopper(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const HopperPlan plan =
      hopper_plan(params, parse_forced_kernel(launcher.forced_kernel()).options);
  const AttendKernel kernel = hopper_prefill_kernel(params, plan);
  if (kernel.shared_bytes > launcher.target().max_shared_bytes) {
    fail(ErrorKind::kUnsupported,
         "kernel hopper_prefill: {}: {} bytes of shared memory, {} are there", plan.reason,
         kernel.shared_bytes, launcher.target().max_shared_bytes);
  }
  launch(launcher, kernel.spec, hopper_shape(launcher.target(), params, plan), params,
         hopper_key_map(params, plan), hopper_value_map(params, plan), hopper_grid(params, plan));
}

}  // namespace

std::string hopper_options_misfit(std::string_view options) {
  return apply_options(options, nullptr);
}

HopperPlan hopper_plan(const attn::AttendParams& params, std::string_view options) {
  const TileChoice& choice = choose_tile(params);
  HopperPlan plan;
  plan.tile = {params.head_size, params.v_head_size,
               choice.tile_n,    2,
               choice.consumers, is_paged(params) ? params.kv.block_size : 0};
  plan.ping_pong = choice.ping_pong;
  plan.group = group_of(params);
  if (const std::string reason = apply_options(options, &plan); !reason.empty()) {
    fail(ErrorKind::kUnsupported, "kernel hopper_prefill: {}", reason);
  }
  plan.reason = fmt::format("{} rows by {} keys, {} stages{}{}{}{}: {}", plan.tile_rows(),
                            plan.tile.tile_n, plan.tile.stages, plan.ping_pong ? ", in turns" : "",
                            plan.persistent ? ", persistent" : "",
                            plan.fixed_base ? ", at a fixed address" : "",
                            plan.reverse ? ", every other head reversed" : "",
                            options.empty() ? choice.reason : "as asked for");
  return plan;
}

std::string hopper_prefill_misfit(const Target& target, const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  if (target.sm != 90) {
    return fmt::format("compute capability {}.{}: its instructions are those of 9.0",
                       target.sm / 10, target.sm % 10);
  }
  if (std::string reason = element_misfit(params); !reason.empty()) return reason;
  if (std::string reason = head_misfit(params); !reason.empty()) return reason;
  if (is_paged(params) && kv.block_size % 16 != 0) {
    return fmt::format("blocks of {} keys: it takes multiples of 16", kv.block_size);
  }
  if (std::string reason = row_misfit(params); !reason.empty()) return reason;
  if (std::string reason =
          stride_misfit(params, kv.token_stride_key, kv.head_stride_key, params.head_size);
      !reason.empty()) {
    return reason;
  }
  if (std::string reason =
          stride_misfit(params, kv.token_stride_value, kv.head_stride_value, params.v_head_size);
      !reason.empty()) {
    return reason;
  }
  const int bytes = attn::hopper_layout(hopper_plan(params).tile).total;
  return bytes <= target.max_shared_bytes
             ? ""
             : fmt::format("{} bytes of shared memory are needed, {} are there", bytes,
                           target.max_shared_bytes);
}

AttendKernel hopper_prefill_kernel(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::ScoreParams& score = params.score;
  const bool soft_cap = score.soft_cap > 0.0f;
  AttendKernel kernel;
  kernel.spec.source = "attention/hopper/prefill.cuh";
  kernel.spec.function = "attn::hopper_prefill";
  kernel.spec.constants = {{"attn::Element kQuery", spec_name(params.query_element)},
                           {"attn::Element kOutput", spec_name(params.output_element)},
                           {"int kHeadSize", std::to_string(params.head_size)},
                           {"int kVHeadSize", std::to_string(params.v_head_size)},
                           {"int kBlockSize", std::to_string(plan.tile.block_size)},
                           {"int kConsumers", std::to_string(plan.tile.consumers)},
                           {"int kTileN", std::to_string(plan.tile.tile_n)},
                           {"int kStages", std::to_string(plan.tile.stages)},
                           {"bool kPingPong", flag(plan.ping_pong)},
                           {"bool kPersistent", flag(plan.persistent)},
                           {"bool kFixedBase", flag(plan.fixed_base)},
                           // Ragged keys end with a tile, and begin in the middle of one.
                           {"bool kLeft", flag(score.window_left >= 0 || !is_paged(params))},
                           {"bool kRanges", flag(score.mm_ranges != nullptr)},
                           {"bool kWideStores", flag(has_wide_stores(params))},
                           {"attn::Alibi kAlibi", alibi_constant(score.alibi)},
                           {"bool kSoftCap", flag(soft_cap)},
                           {"bool kScaleFirst", flag(scales_first(params))}};
  // O of 256 columns beside a soft cap and masks of every kind: 36 bytes were seen.
  kernel.spec.allowed_spill_bytes = params.v_head_size > 192 ? 64 : 0;
  kernel.spec.name = fmt::format("hopper_prefill{} {}x{}", problem_name(params), plan.tile_rows(),
                                 plan.tile.tile_n);
  kernel.tile_rows = plan.tile_rows();
  kernel.threads = (plan.tile.consumers + 1) * 128;
  kernel.shared_bytes = attn::hopper_layout(plan.tile).total;
  return kernel;
}

attn::HopperGrid hopper_grid(const attn::AttendParams& params, const HopperPlan& plan) {
  attn::HopperGrid grid{};
  grid.row_tiles = static_cast<int>(ceil_quotient(max_packed_rows(params), plan.tile_rows()));
  grid.num_units = params.num_requests * params.num_kv_heads;
  grid.group = std::clamp(plan.group, 1, std::max(grid.num_units, 1));
  grid.reverse = plan.reverse ? 1 : 0;
  return grid;
}

LaunchShape hopper_shape(const Target& target, const attn::AttendParams& params,
                         const HopperPlan& plan) {
  const AttendKernel kernel = hopper_prefill_kernel(params, plan);
  LaunchShape shape = row_tiles(kernel, params, 1);
  if (plan.persistent) shape.grid_x = std::min<std::int64_t>(shape.grid_x, target.num_sms);
  return shape;
}

TensorMap hopper_key_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  return side_map(params, plan, kv.key, kv.token_stride_key, kv.head_stride_key, params.head_size);
}

TensorMap hopper_value_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  return side_map(params, plan, kv.value, kv.token_stride_value, kv.head_stride_value,
                  params.v_head_size);
}

const AttendCandidate kHopperPrefillCandidate{"hopper_prefill", misfit, yields, launch_hopper,
                                              hopper_options_misfit};

}  // namespace attnbench::cuda
