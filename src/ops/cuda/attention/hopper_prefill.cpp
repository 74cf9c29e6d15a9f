#include "ops/cuda/attention/hopper_prefill.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <span>

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
  int stages = 2;
  int line = 0;             // attn::HopperTile
  bool persistent = false;  // and ahead where that can be: HopperPlan
};
/// Measured on one NVIDIA H200, 2026-11-22, with standalone experiments, bf16; TFLOP/s at 8k / 16k.
/// Three consumers have 160 registers a thread, two have 240: O, S and P (Dv / 2, tile_n / 2 and
/// tile_n / 4 of them) must leave 16 of these for the rest.
constexpr std::array kTiles = {
    // 64 columns: 192 x 128 578 / 606 causal; there the softmax takes as long as the products, and
    // turns keep the warpgroups from doing the same thing at the same time.
    TileChoice{64, 64, 3, 128, true, "the widest that three consumers hold"},
    // Not measured: 80 columns, of encoders. S of 112 keys beside O takes 124 registers with P, 128
    // keys spill. The softmax takes four fifths of the products' time: turns, as with 64.
    TileChoice{80, 80, 3, 112, true, "the widest that three consumers hold", 2, 128},
    // Not measured: S of 96 keys beside O of 96 columns takes 120 registers with P.
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    // 128 columns: 192 x 80 783 / 819 causal and 788 / 826 full, 128 x 128 731 / 759 and 753 / 755:
    // 192 rows read a third less of the L2.
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    // 256 columns: 128 x 64 803 / 833 causal, 827 / 831 full; O alone takes 128 registers.
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers"},
};
/// Up to so many packed rows of a request two consumers are taken where they leave so many fewer
/// rows empty that it pays: a row by them takes a quarter longer (64 requests of 512 tokens and
/// their 2,048 packed rows, D128: 753 us and 601 us).
constexpr std::int64_t kShortRows = 1024;
constexpr double kShortTileCost = 1.25;
constexpr TileChoice kShortTile{
    128, 128, 2, 128, false, "192 rows a tile would leave too many of the last one empty"};

/// Up to so many query tokens of a request the producer works ahead, and each CTA goes through many
/// row tiles: the start and the end of a tile cost more than half of it there. Longer ones are
/// better dealt out one by one, the heaviest first. Measured on one NVIDIA H200, 2026-11-23, bf16
/// over pages of 16, 32 heads over 8 of D128, without and with it: 64 requests of 512 tokens 601
/// and 462 us, 8 of 2,048 546 and 508, 2 of 8,192 1537 and 1573, one of 16,384 2859 and 3006.
constexpr int kAheadTokens = 4096;
/// Of 64 columns: what more keys take in registers beside it would spill.
constexpr int kAheadTileN = 96;
/// Windows of an encoder: up to so many rows of keys of their own, which no other rows see, three
/// CTAs of one consumer share a multiprocessor, and each brings the keys of its next window while
/// it computes this one. Why: a window of 64 tokens is two products and 40 KB, and its time is that
/// of waiting for memory. Small images are the same as long as there are few of them: the more rows
/// of one image a CTA has, the fewer multiprocessors have work. Not measured.
constexpr std::int64_t kWindowRows = 256;
constexpr std::int64_t kFewTiles = 1024;  // of 64 rows
constexpr TileChoice kWindowTile{
    96, 96, 1, 64, false, "of few rows with keys of their own, several at a time", 2, 64, true};

/// Of e4m3 products, where P takes tile_n / 8 registers and sums beside the output
/// (HopperPlan::promote) as many as that, up to 64. None of these has been measured. What is
/// counted for them: 128 rows by 128 keys of 128 columns take 1,024 clocks of the tensor cores and
/// as many of the exponential unit, so turns at the tensor cores let warpgroups do one while others
/// do the other. A third stage: values are there one transposition later. 128 keys would spill.
constexpr std::array kCodeTiles = {
    TileChoice{64, 64, 3, 96, true, "the widest that three consumers hold beside two sums", 3},
    TileChoice{256, 128, 2, 96, true, "the widest that two consumers hold beside two sums", 3},
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers",
               3},
};
/// With attention.fp8_accumulation: fast, without a second sum.
constexpr std::array kFastCodeTiles = {
    TileChoice{64, 64, 3, 128, true, "lines of 128 keys, and registers for three consumers", 3},
    TileChoice{192, 128, 2, 192, true, "wide enough for copies and barriers to be few"},
    TileChoice{256, 256, 2, 96, false, "the widest that shared memory holds"},
};
/// Of 16-bit queries over codes, whose tiles lie in shared memory twice.
constexpr std::array kConvertedTiles = {
    TileChoice{64, 64, 3, 96, true, "the widest that three consumers hold"},
    TileChoice{128, 128, 3, 80, false, "the widest that three consumers hold"},
    TileChoice{192, 128, 2, 80, false, "the widest that shared memory holds"},
    TileChoice{256, 256, 2, 48, false, "the widest that shared memory holds"},
};
/// Of int8 scores. Not measured: registers are those of 16-bit products, and so are the tiles;
/// products of scores take half the time of these.
constexpr std::array kInt8Tiles = {
    TileChoice{64, 64, 3, 128, true, "the widest that three consumers hold"},
    TileChoice{128, 96, 3, 96, false, "the widest that three consumers hold"},
    TileChoice{192, 128, 3, 80, false, "the widest that three consumers hold"},
    TileChoice{256, 256, 2, 64, false, "the output takes most of the registers of two consumers"},
};
/// Of decodes: one consumer, two CTAs on a multiprocessor. Not measured. What bounds it is memory:
/// of 64 keys of 128 columns 16 KB come, and 64 rows of them, few of which exist, take 384 clocks
/// of the tensor cores.
constexpr TileChoice kInt8DecodeTile{256, 256, 1, 64, false, "of no more than 64 rows", 2};
/// Columns of values up to which sums of all of them lie beside the output: HopperConsumer.
constexpr int kMostWholeSums = 128;
/// Keys whose e4m3 products the tensor cores sum before f32 does; see choose_sums().
constexpr int kPromotedKeys = 192;

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

/// Whether rows may be blind to the last keys of a tile by more than their request's end.
bool is_causal(const attn::AttendParams& params) { return params.score.window_right >= 0; }

int operand_bytes(const attn::AttendParams& params) {
  return size_of_element(params.query_element);
}
int stored_bytes(const attn::AttendParams& params) { return size_of_element(params.kv.element); }
/// Columns of values that are multiplied: of e4m3 whole steps of 16, where the rows have them. An
/// encoder's heads of 72 are padded to 80, and what comes of the padding is not written.
int multiplied_columns(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const int columns = (params.v_head_size + 15) / 16 * 16;
  const bool has_room = kv.head_stride_value >= columns && kv.token_stride_value >= columns;
  return !is_paged(params) && has_room && kv.element == attn::Element::kE4M3 &&
                 params.query_element == attn::Element::kE4M3
             ? columns
             : params.v_head_size;
}
/// Scores of int8 codes with scales of their own (semantics §11.4).
bool is_int8(const attn::AttendParams& params) { return params.int8.query_scale != nullptr; }
bool has_e4m3_products(const attn::AttendParams& params) {
  return operand_bytes(params) == 1 && !is_int8(params);
}
attn::Element value_element(const attn::AttendParams& params) {
  return is_int8(params) ? params.int8.value_element : params.kv.element;
}

/// As few rows as kWindowTile is for.
bool has_short_sequences(const attn::AttendParams& params) {
  if (params.batch_invariant != 0 || is_paged(params) || is_causal(params)) return false;
  const std::int64_t rows = max_packed_rows(params);
  return rows <= kWindowRows ||
         (rows <= kShortRows && num_row_tiles(params, attn::kConsumerRows, 1) <= kFewTiles);
}
bool has_columns_of(const TileChoice& tile, const attn::AttendParams& params) {
  return params.head_size <= tile.most_columns && params.v_head_size <= tile.most_v_columns;
}

/// The first that fits, or the last.
const TileChoice& first_tile(std::span<const TileChoice> tiles, const attn::AttendParams& params) {
  const auto fits = [&](const TileChoice& tile) {
    // Why: what transforms scores takes registers too; 112 keys of three consumers would spill, and
    // beside two sums 96.
    const int least_spilling = has_e4m3_products(params) ? 96 : 112;
    const bool has_room =
        !scales_first(params) || tile.consumers == 2 || tile.tile_n < least_spilling;
    return has_room && params.head_size <= tile.most_columns &&
           params.v_head_size <= tile.most_v_columns;
  };
  return *std::find_if(tiles.begin(), tiles.end() - 1, fits);
}

const TileChoice& choose_tile(const attn::AttendParams& params) {
  if (is_int8(params)) {
    const bool has_one_tile = max_packed_rows(params) <= attn::kConsumerRows;
    return has_one_tile ? kInt8DecodeTile : first_tile(kInt8Tiles, params);
  }
  if (has_e4m3_products(params)) {
    return params.fast_fp8_sums != 0 ? first_tile(kFastCodeTiles, params)
                                     : first_tile(kCodeTiles, params);
  }
  if (stored_bytes(params) == 1) return first_tile(kConvertedTiles, params);
  const bool is_window = has_short_sequences(params) && has_columns_of(kWindowTile, params);
  if (is_window && !scales_first(params)) return kWindowTile;
  // Why not where bytes may not depend on the batch: the longest request would decide.
  const std::int64_t rows = max_packed_rows(params);
  if (params.batch_invariant == 0 && rows <= kShortRows && has_columns_of(kShortTile, params)) {
    const auto cost_of_tiles = [&](std::int64_t tile_rows) {
      return static_cast<double>(ceil_quotient(rows, tile_rows) * tile_rows);
    };
    if (cost_of_tiles(128) * kShortTileCost < cost_of_tiles(192)) return kShortTile;
  }
  return first_tile(kTiles, params);
}

/// Why the producer cannot bring queries; empty where it can.
std::string ahead_misfit(const attn::AttendParams& params) {
  if (stored_bytes(params) == 1) return "codes, which take all warps that could work ahead";
  const int group = params.num_heads / params.num_kv_heads;
  if (attn::kConsumerRows % group != 0) {
    return fmt::format("groups of {} heads, which do not divide 64 rows", group);
  }
  if (params.head_size % 16 != 0) {
    return fmt::format("head size {} is not a multiple of 16", params.head_size);
  }
  return "";
}

/// Why not where bytes may not depend on the batch: the longest request would choose the tile.
bool works_ahead(const attn::AttendParams& params) {
  // Of 256 columns what transforms scores leaves no registers for it.
  if (params.v_head_size > 192 && scales_first(params)) return false;
  return params.batch_invariant == 0 && params.max_query_len <= kAheadTokens &&
         ahead_misfit(params).empty();
}

int group_of(const attn::AttendParams& params) {
  // Why 1: without a causal mask the row tiles of a unit are all alike, and follow one another.
  if (!is_causal(params)) return 1;
  // The host does not know how many keys there are; at least as many as rows, as a rule.
  const std::int64_t bytes = std::int64_t{std::max(params.max_query_len, 1)} *
                             (params.head_size + params.v_head_size) * stored_bytes(params);
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
    Option{"consumers", 1, 3, 1, [](HopperPlan& plan, int n) { plan.tile.consumers = n; }},
    Option{"tile_n", 64, 256, 16, [](HopperPlan& plan, int n) { plan.tile.tile_n = n; }},
    Option{"stages", 2, 4, 1, [](HopperPlan& plan, int n) { plan.tile.stages = n; }},
    Option{"line", 0, 128, 64, [](HopperPlan& plan, int n) { plan.tile.line = n; }},
    Option{"ping_pong", 0, 1, 1, [](HopperPlan& plan, int n) { plan.ping_pong = n != 0; }},
    Option{"persistent", 0, 1, 1, [](HopperPlan& plan, int n) { plan.persistent = n != 0; }},
    Option{"ahead", 0, 1, 1, [](HopperPlan& plan, int n) { plan.tile.ahead = n != 0; }},
    Option{"fixed_base", 0, 1, 1, [](HopperPlan& plan, int n) { plan.fixed_base = n != 0; }},
    Option{"reverse", 0, 1, 1, [](HopperPlan& plan, int n) { plan.reverse = n != 0; }},
    Option{"promote", 1, 16, 1, [](HopperPlan& plan, int n) { plan.promote = n; }},
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
  const int least = 16 / stored_bytes(params);  // rows of 16 bytes; of pages, of whole steps
  if (params.v_head_size % 8 != 0) {
    return fmt::format("head size {} of values is not a multiple of 8", params.v_head_size);
  }
  for (const int size : {params.head_size, multiplied_columns(params)}) {
    if (size % least != 0) return fmt::format("head size {} is not a multiple of {}", size, least);
    if (size % (2 * least) != 0 && is_paged(params)) {
      return fmt::format("head size {} over pages is not a multiple of {}", size, 2 * least);
    }
    if (size > 256) return fmt::format("head size {} is more than 256", size);
    if (size < 32) return fmt::format("head size {} is less than 32", size);
  }
  return "";
}

std::string int8_misfit(const attn::AttendParams& params) {
  const attn::Element value = value_element(params);
  if (!is_paged(params))
    return "scores of int8 codes over contiguous keys, whose scales have slots";
  if (params.query_element != attn::Element::kI8 || params.kv.element != attn::Element::kI8 ||
      (value != attn::Element::kI8 && value != attn::Element::kBF16 &&
       value != attn::Element::kF16)) {
    return fmt::format("scores of int8 codes of {} queries over {} keys and {} values",
                       short_name(params.query_element), short_name(params.kv.element),
                       short_name(value));
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

std::string element_misfit(const attn::AttendParams& params) {
  const attn::Element query = params.query_element;
  const attn::KvParams& kv = params.kv;
  if (is_int8(params)) return int8_misfit(params);
  if (kv.element == attn::Element::kE4M3 && kv.key_scales != nullptr) {
    return "scales of every token and head: it has those of tensors and heads";
  }
  if (query == attn::Element::kE4M3 && kv.element == query && kv.round_dequantized == 0) {
    if (params.e4m3_probability != 0) return "";
    return "probabilities of 16 bits beside e4m3 values: products have one type";
  }
  const bool is_16_bit = query == attn::Element::kBF16 || query == attn::Element::kF16;
  if (!is_16_bit || (kv.element != query && kv.element != attn::Element::kE4M3)) {
    return fmt::format(
        "{} queries over {} keys: it multiplies 16 bits of one type, or e4m3, or decodes e4m3",
        short_name(query), short_name(kv.element));
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

/// What every row of one side starts on.
Alignment side_alignment(const attn::AttendParams& params, attn::Element element, const void* data,
                         attn::i64 token_stride, attn::i64 head_stride) {
  const attn::KvParams& kv = params.kv;
  Alignment alignment;
  alignment.pointer(data).stride(token_stride, element).stride(head_stride, element);
  if (is_paged(params)) alignment.stride(kv.block_stride, element);
  return alignment;
}

std::string row_misfit(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const int keys =
      std::min(side_alignment(params, kv.element, kv.key, kv.token_stride_key, kv.head_stride_key)
                   .common_bytes(),
               side_alignment(params, value_element(params), kv.value, kv.token_stride_value,
                              kv.head_stride_value)
                   .common_bytes());
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
std::string stride_misfit(const attn::AttendParams& params, int bytes, attn::i64 token_stride,
                          attn::i64 head_stride, int columns) {
  if (token_stride <= 0) return fmt::format("tokens of keys or values lie {} apart", token_stride);
  if (params.num_kv_heads == 1) return "";
  if (head_stride <= 0) return fmt::format("heads of keys or values lie {} apart", head_stride);
  const int elements = attn::operand_span(attn::padded_columns(columns, bytes), bytes) / bytes;
  if (is_paged(params) && head_stride % elements != 0) {
    return fmt::format("heads of a page lie {} elements apart, a multiple of {} is needed",
                       head_stride, elements);
  }
  return "";
}

/// 16 bytes of an output row at a time.
bool has_wide_stores(const attn::AttendParams& params) {
  return size_of_element(params.output_element) == 2 &&
         Alignment()
                 .pointer(params.output)
                 .stride(params.output_token_stride, params.output_element)
                 .stride(params.output_head_stride, params.output_element)
                 .common_bytes() == kRowAlignment;
}

/// Of rows and pages, which are not counted: the kernel names none that the request does not have.
constexpr std::int64_t kUncounted = std::int64_t{1} << 30;

TensorSwizzle swizzle_of(int span) {
  if (span == 128) return TensorSwizzle::k128Bytes;
  return span == 64 ? TensorSwizzle::k64Bytes : TensorSwizzle::k32Bytes;
}

TensorMap side_map(const attn::AttendParams& params, const HopperPlan& plan, attn::Element element,
                   const void* data, attn::i64 token_stride, attn::i64 head_stride, int columns) {
  const int bytes = size_of_element(element);
  const int stored = attn::stored_columns(plan.tile, columns, bytes);
  const int span = attn::side_span(plan.tile, columns, bytes);
  const int chunks = stored * bytes / span;
  const int rows = attn::box_rows(plan.tile);
  const std::int64_t token_bytes = token_stride * bytes;
  TensorMap map;
  map.data = data;
  map.dtype = static_cast<Dtype>(element);
  map.swizzle = swizzle_of(span);
  map.promotion =
      columns * bytes % 256 == 0 ? TensorPromotion::k256Bytes : TensorPromotion::k128Bytes;
  if (!is_paged(params)) {
    // One head needs no stride, but the map wants one that it can take.
    const std::int64_t head_bytes = params.num_kv_heads == 1 ? token_bytes : head_stride * bytes;
    if (columns != stored) {
      // A box a span, since what lies behind a row's columns is to be read as zeros.
      map.rank = 3;
      map.extents = {columns, kUncounted, params.num_kv_heads};
      map.strides = {bytes, token_bytes, head_bytes};
      map.box = {span / bytes, rows, 1};
      return map;
    }
    map.rank = 4;
    map.extents = {span / bytes, kUncounted, chunks, params.num_kv_heads};
    map.strides = {bytes, token_bytes, span, head_bytes};
    map.box = {span / bytes, rows, chunks, 1};
    return map;
  }
  const std::int64_t lines = head_stride * bytes / span * (params.num_kv_heads - 1) + chunks;
  map.rank = 5;
  map.extents = {span / bytes, 8, lines, params.kv.block_size / 8, kUncounted};
  map.strides = {bytes, token_bytes, span, 8 * token_bytes, params.kv.block_stride * bytes};
  map.box = {span / bytes, 8, chunks, rows / 8, 1};
  return map;
}

std::string flag(bool value) { return value ? "true" : "false"; }

std::string misfit(const Target& target, const AttendCall& call) {
  if (call.operation != AttendOperation::kWhole) {
    return fmt::format("it has no form of {}", operation_name(call.operation));
  }
  return hopper_prefill_misfit(target, *call.params);
}

/// Why it leaves calls of codes and of encoders to others unless it is named: that code and these
/// tiles have not run on a GPU yet.
std::string yields(const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const bool is_new = stored_bytes(params) == 1 || choose_tile(params).consumers == 1 ||
                      (choose_tile(params).line != 0 && !is_paged(params));
  if (!is_new) return "";
  return fmt::format("it has not been measured on a GPU and runs where it is named; {}",
                     hopper_plan(params).reason);
}

/// New keys and values by position, of requests whose rows are one tile: several tiles of a request
/// would read what one of them stores. Rows that are copied lie on 16 bytes.
bool saves(const Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const attn::Int8CacheWriteParams& save = *call.save;
  const HopperPlan plan =
      hopper_plan(params, parse_forced_kernel(launcher.forced_kernel()).options);
  const int aligned = Alignment()
                          .pointer(save.key)
                          .bytes(save.key_token_stride)
                          .bytes(save.key_head_stride)
                          .pointer(save.value)
                          .stride(save.value_token_stride, save.value_element)
                          .stride(save.value_head_stride, save.value_element)
                          .common_bytes();
  return save.slot_mapping == nullptr && max_packed_rows(params) <= plan.tile_rows() &&
         aligned >= kRowAlignment;
}

void launch_hopper(Launcher& launcher, const AttendCall& call) {
  const attn::AttendParams& params = *call.params;
  const HopperPlan plan =
      hopper_plan(params, parse_forced_kernel(launcher.forced_kernel()).options);
  AttendKernel kernel = hopper_prefill_kernel(params, plan);
  if (kernel.shared_bytes > launcher.target().max_shared_bytes) {
    fail(ErrorKind::kUnsupported,
         "kernel hopper_prefill: {}: {} bytes of shared memory, {} are there", plan.reason,
         kernel.shared_bytes, launcher.target().max_shared_bytes);
  }
  const LaunchShape shape = hopper_shape(launcher.target(), params, plan);
  const TensorMap keys = hopper_key_map(params, plan);
  const TensorMap values = hopper_value_map(params, plan);
  // A kernel that does not read it takes any map.
  const TensorMap queries = plan.tile.ahead ? hopper_query_map(params) : keys;
  const attn::HopperGrid grid = hopper_grid(params, plan);
  if (call.save == nullptr) {
    launch(launcher, kernel.spec, shape, params, keys, values, queries, grid);
    return;
  }
  kernel.spec.function = "attn::hopper_prefill_saving";
  kernel.spec.name += " saving";
  launch(launcher, kernel.spec, shape, params, keys, values, queries, grid, *call.save);
}

/// Sets how many tiles' e4m3 products the tensor cores sum; why the tile cannot be, or "".
std::string choose_sums(const attn::AttendParams& params, HopperPlan& plan) {
  if (!has_e4m3_products(params)) {
    plan.promote = 0;
    return "";
  }
  if (plan.tile.tile_n % 32 != 0) {
    return fmt::format("tile_n={}: e4m3 products take multiples of 32 keys", plan.tile.tile_n);
  }
  // Each step of 32 keys cuts what lies more than 13 bits below the sum, 2^-14 of it on average.
  // Where all values have one sign, a sum of the 6 steps of 192 keys is 1.8e-4 too small, one of
  // 131,072 keys 13 %. Wider heads are summed piece by piece, each tile anew.
  const bool by_pieces = params.v_head_size > kMostWholeSums;
  if (params.fast_fp8_sums == 0 && plan.promote == 0) {
    plan.promote = std::max(kPromotedKeys / plan.tile.tile_n, 1);
  }
  if (by_pieces && plan.promote > 1) plan.promote = 1;
  return "";
}

/// How e4m3 products are summed, for the reason of a plan.
std::string sums_text(const attn::AttendParams& params, const HopperPlan& plan) {
  if (!has_e4m3_products(params)) return "";
  if (plan.promote == 0) return ", fast sums of 13 bits";
  return fmt::format(", sums of {} keys promoted to f32", plan.promote * plan.tile.tile_n);
}

}  // namespace

std::string hopper_options_misfit(std::string_view options) {
  return apply_options(options, nullptr);
}

HopperPlan hopper_plan(const attn::AttendParams& params, std::string_view options) {
  const TileChoice& choice = choose_tile(params);
  HopperPlan plan;
  plan.tile = {params.head_size,
               multiplied_columns(params),
               choice.tile_n,
               choice.stages,
               choice.consumers,
               is_paged(params) ? params.kv.block_size : 0,
               false,
               operand_bytes(params),
               stored_bytes(params),
               choice.line,
               is_int8(params) ? size_of_element(value_element(params)) : 0};
  plan.ping_pong = choice.ping_pong;
  plan.persistent = choice.persistent;
  plan.group = group_of(params);
  plan.tile.ahead = works_ahead(params);
  HopperPlan asked = plan;
  std::string reason = apply_options(options, &asked);
  if (asked.tile.ahead && choice.most_columns == 64) plan.tile.tile_n = kAheadTileN;
  apply_options(options, &plan);
  if (reason.empty() && plan.tile.ahead) reason = ahead_misfit(params);
  if (reason.empty()) reason = choose_sums(params, plan);
  if (!reason.empty()) fail(ErrorKind::kUnsupported, "kernel hopper_prefill: {}", reason);
  if (plan.tile.consumers == 1) plan.ping_pong = false;  // there is no other to take turns with
  const std::string lines = plan.tile.line != 0 && plan.tile.block_size == 0
                                ? fmt::format(", lines of {} bytes", plan.tile.line)
                                : "";
  plan.reason =
      fmt::format("{} rows by {} keys, {} stages{}{}{}{}{}{}: {}", plan.tile_rows(),
                  plan.tile.tile_n, plan.tile.stages, lines, plan.ping_pong ? ", in turns" : "",
                  plan.tile.ahead ? ", ahead" : (plan.persistent ? ", persistent" : ""),
                  plan.fixed_base ? ", at a fixed address" : "",
                  plan.reverse ? ", every other head reversed" : "", sums_text(params, plan),
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
  if (std::string reason = stride_misfit(params, stored_bytes(params), kv.token_stride_key,
                                         kv.head_stride_key, params.head_size);
      !reason.empty()) {
    return reason;
  }
  if (std::string reason =
          stride_misfit(params, size_of_element(value_element(params)), kv.token_stride_value,
                        kv.head_stride_value, multiplied_columns(params));
      !reason.empty()) {
    return reason;
  }
  const int bytes = attn::hopper_layout(hopper_plan(params).tile).total;
  return bytes <= target.max_shared_bytes
             ? ""
             : fmt::format("{} bytes of shared memory are needed, {} are there", bytes,
                           target.max_shared_bytes);
}

/// What was seen: O, S and P take nearly all registers of three consumers, and of two whose O has
/// 256 columns. More than that spills only what transforms scores and what finds ranges.
static int allowed_spill_bytes(const attn::AttendParams& params, const HopperPlan& plan) {
  if (params.score.mm_ranges != nullptr) return 240;
  if (params.v_head_size > 192) return 64;
  if (stored_bytes(params) == 1) return 48;
  if (plan.tile.consumers < 3) return 0;
  return scales_first(params) ? 240 : 32;
}

AttendKernel hopper_prefill_kernel(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::ScoreParams& score = params.score;
  const bool soft_cap = score.soft_cap > 0.0f;
  AttendKernel kernel;
  kernel.spec.source = "attention/hopper/prefill.cuh";
  kernel.spec.function = "attn::hopper_prefill";
  const bool rounds = stored_bytes(params) == 1 && params.kv.round_dequantized != 0;
  kernel.spec.constants = {
      {"attn::Element kQuery", spec_name(params.query_element)},
      {"attn::Element kKeyValue", spec_name(params.kv.element)},
      {"attn::Element kOutput", spec_name(params.output_element)},
      {"attn::Element kInt8Value",
       spec_name(is_int8(params) ? value_element(params) : attn::Element::kF32)},
      {"int kHeadSize", std::to_string(params.head_size)},
      {"int kVHeadSize", std::to_string(multiplied_columns(params))},
      {"int kOutputColumns", std::to_string(params.v_head_size)},
      {"int kBlockSize", std::to_string(plan.tile.block_size)},
      {"bool kRoundDequantized", flag(rounds)},
      {"int kPromote", std::to_string(plan.promote)},
      {"int kConsumers", std::to_string(plan.tile.consumers)},
      {"int kTileN", std::to_string(plan.tile.tile_n)},
      {"int kStages", std::to_string(plan.tile.stages)},
      {"int kLine", std::to_string(plan.tile.line)},
      {"bool kPingPong", flag(plan.ping_pong)},
      {"bool kPersistent", flag(plan.stays())},
      {"bool kAhead", flag(plan.tile.ahead)},
      {"bool kFixedBase", flag(plan.fixed_base)},
      // Ragged keys end with a tile, and begin in the middle of one.
      {"bool kLeft", flag(score.window_left >= 0 || !is_paged(params))},
      {"bool kRanges", flag(score.mm_ranges != nullptr)},
      {"bool kWideStores", flag(has_wide_stores(params))},
      {"attn::Alibi kAlibi", alibi_constant(score.alibi)},
      {"bool kSoftCap", flag(soft_cap)},
      {"bool kScaleFirst", flag(scales_first(params))}};
  kernel.spec.allowed_spill_bytes = allowed_spill_bytes(params, plan);
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
  if (plan.stays()) {
    const std::int64_t places = std::int64_t{target.num_sms} * attn::hopper_ctas(plan.tile);
    shape.grid_x = std::min(shape.grid_x, places);
  }
  return shape;
}

TensorMap hopper_key_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  return side_map(params, plan, kv.element, kv.key, kv.token_stride_key, kv.head_stride_key,
                  params.head_size);
}

TensorMap hopper_value_map(const attn::AttendParams& params, const HopperPlan& plan) {
  const attn::KvParams& kv = params.kv;
  return side_map(params, plan, value_element(params), kv.value, kv.token_stride_value,
                  kv.head_stride_value, multiplied_columns(params));
}

TensorMap hopper_query_map(const attn::AttendParams& params) {
  const int span = attn::operand_span(params.head_size);
  const int group = params.num_heads / params.num_kv_heads;
  const std::int64_t token_bytes = params.query_token_stride * 2;
  TensorMap map;
  map.data = params.query;
  map.dtype = params.query_element == attn::Element::kBF16 ? Dtype::kBF16 : Dtype::kF16;
  map.swizzle = swizzle_of(span);
  map.rank = 4;
  // Tokens are not counted: the kernel names none that the request does not have.
  map.extents = {span / 2, params.num_heads, kUncounted, attn::operand_chunks(params.head_size)};
  map.strides = {2, params.num_heads == 1 ? token_bytes : params.query_head_stride * 2, token_bytes,
                 span};
  map.box = {span / 2, group, attn::kConsumerRows / group, attn::operand_chunks(params.head_size)};
  return map;
}

const AttendCandidate kHopperPrefillCandidate{.name = "hopper_prefill",
                                              .misfit = misfit,
                                              .yields = yields,
                                              .launch = launch_hopper,
                                              .options_misfit = hopper_options_misfit,
                                              .saves = saves};

}  // namespace attnbench::cuda
