// The tables of tiles with what was measured for them, and how a problem becomes the constants of a
// kernel. Every constant that is a choice and not a fact of the problem has its reason beside it.
#include "ops/cuda/attention/spec.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kernels/attention/decode/layout.cuh"
#include "kernels/attention/prefill_layout.cuh"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Tiles of the prefill kernel up to a head size; the first row that fits is taken.
struct PrefillTile {
  int max_columns;
  int element_bytes;  // of a key
  int warps;
  int row_blocks;
  int tile_n;
  int min_ctas;
};
/// Why 32 rows a warp up to 128 columns: a fragment of K or V then feeds two products, and shared
/// memory keeps up with the tensor cores. Measured on one NVIDIA H200, 2026-11-21, D128 H16 S8192
/// bf16: {4, 2, 64} 371 TFLOP/s, {8, 2, 64} 353, {4, 2, 32} 325; D256: {8, 1, 64} 284; e4m3 D128:
/// {4, 2, 64} 280, {4, 1, 64} 194. Later, with rows of whole lines: D256 {8, 1, 64} 322, two CTAs
/// of {4, 1, 32} 233; D64 {4, 2, 64} 300, three CTAs of it 294, of {4, 2, 32} 283.
constexpr std::array kPrefillTiles = {
    PrefillTile{128, 2, 4, 2, 64, 2}, PrefillTile{128, 2, 4, 2, 32, 1},
    PrefillTile{256, 2, 8, 1, 64, 1}, PrefillTile{256, 2, 8, 1, 32, 1},
    PrefillTile{256, 2, 4, 1, 16, 1}, PrefillTile{128, 1, 4, 2, 64, 2},
    PrefillTile{256, 1, 8, 1, 64, 1}, PrefillTile{256, 1, 4, 1, 32, 1},
};

/// With a scale for every token and head, which take the registers of 16 rows more.
constexpr std::array kTokenHeadPrefillTiles = {PrefillTile{128, 1, 4, 1, 64, 2},
                                               PrefillTile{256, 1, 8, 1, 64, 1},
                                               PrefillTile{256, 1, 4, 1, 32, 1}};

constexpr int kDecodeRows = 16;

bool has_token_head_scales(const attn::AttendParams& params) {
  return params.kv.key_scales != nullptr && !has_int8_scores(params);
}

/// What every row of K and V starts on a multiple of, and is one of.
int copy_bytes(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  Alignment alignment;
  alignment.pointer(kv.key)
      .pointer(kv.value)
      .stride(kv.token_stride_key, kv.element)
      .stride(kv.token_stride_value, value_element(params))
      .stride(kv.head_stride_key, kv.element)
      .stride(kv.head_stride_value, value_element(params))
      .stride(params.head_size, kv.element)
      .stride(params.v_head_size, value_element(params));
  if (is_paged(params)) alignment.stride(kv.block_stride, kv.element);
  return alignment.common_bytes();
}

int query_copy_bytes(const attn::AttendParams& params) {
  return Alignment()
      .pointer(params.query)
      .stride(params.query_token_stride, params.query_element)
      .stride(params.query_head_stride, params.query_element)
      .stride(params.head_size, params.query_element)
      .common_bytes();
}

std::string alibi_name(attn::Alibi alibi) {
  switch (alibi) {
    case attn::Alibi::kNone:
      return "kNone";
    case attn::Alibi::kKeyIndex:
      return "kKeyIndex";
    case attn::Alibi::kContextRelative:
      return "kContextRelative";
    case attn::Alibi::kDistance:
      return "kDistance";
    case attn::Alibi::kSqrt:
      return "kSqrt";
    case attn::Alibi::kGlobalKeyIndex:
      return "kGlobalKeyIndex";
    case attn::Alibi::kGlobalDistance:
      return "kGlobalDistance";
    case attn::Alibi::kGlobalSqrt:
      return "kGlobalSqrt";
  }
  return "";
}

using Constants = std::vector<std::pair<std::string, std::string>>;

/// What prefill and decode are both specialised to.
Constants problem_constants(const attn::AttendParams& params) {
  const attn::ScoreParams& score = params.score;
  const bool soft_cap = score.soft_cap > 0.0f;
  const bool codes = key_bytes(params) == 1 && !has_int8_scores(params);
  Constants constants = {
      {"attn::Element kQuery", spec_name(params.query_element)},
      {"attn::Element kKeyValue", spec_name(params.kv.element)},
      {"attn::Element kOutput", spec_name(params.output_element)},
      {"int kHeadSize", std::to_string(params.head_size)},
      {"int kVHeadSize", std::to_string(params.v_head_size)},
      {"int kBlockSize", std::to_string(is_paged(params) ? params.kv.block_size : 0)},
      {"int kCopyBytes", std::to_string(copy_bytes(params))},
      {"int kQueryCopyBytes", std::to_string(query_copy_bytes(params))},
      {"attn::Alibi kAlibi", alibi_constant(score.alibi)},
      {"bool kSoftCap", spec_flag(soft_cap)},
      // Why the sign: the maximum of scaled scores is the scaled maximum for positive scales only.
      {"bool kScaleFirst", spec_flag(scales_first(params))},
      {"bool kTokenHeadScales", spec_flag(codes && has_token_head_scales(params))},
      {"bool kRoundDequantized", spec_flag(codes && params.kv.round_dequantized != 0)},
  };
  if (has_int8_scores(params)) {
    constants.emplace_back("attn::Element kInt8Value", spec_name(value_element(params)));
  }
  return constants;
}

attn::PrefillLayout layout_of(const PrefillTile& tile, const attn::AttendParams& params) {
  return attn::prefill_layout(tile.warps, tile.warps * tile.row_blocks * 16, tile.tile_n,
                              params.head_size, params.v_head_size, key_bytes(params));
}

/// Warps and steps of the decode kernel: of a table, the first that fits is taken.
struct DecodeTile {
  int max_columns;
  int element_bytes;  // of a key
  int warps;
  int stages;         // of a warp with a ring of its own
  int ctas = 1;       // that must fit a multiprocessor together
  int row_warps = 1;  // that share a ring
  int heads = 1;      // KV heads in a ring

  /// Of a ring. One step is in work; as many as before are under way.
  int all_stages() const { return row_warps == 1 ? stages : row_warps * stages - 1; }
};
/// Why two or three stages where two CTAs share a multiprocessor: they hide the memory's latency,
/// and with more of them CTAs of neighbouring heads drift apart, so that lines of cells of both are
/// read twice. Measured on one NVIDIA H200, 2026-11-21, 32/8 heads, D128, blocks of 16, B64 S8192,
/// GB/s: e4m3 {4, 3} 4028, {4, 4} 4021; e4m3 with a scale per token and head {4, 3} 3514, {4, 4}
/// 3354; bf16 {4, 2} 4313, three stages of it do not fit twice; bf16 of D64 two CTAs of {4, 4}
/// 4058, three of {4, 3} 3678.
constexpr std::array kDecodeTiles = {
    DecodeTile{80, 2, 4, 4, 2}, DecodeTile{96, 2, 4, 3},  DecodeTile{256, 2, 4, 2},
    DecodeTile{256, 2, 2, 2},   DecodeTile{96, 1, 4, 4},  DecodeTile{128, 1, 4, 3},
    DecodeTile{256, 1, 4, 2},   DecodeTile{256, 1, 2, 2},
};
/// From so many columns on no more than two CTAs share a multiprocessor. Why: two saturate the
/// memory, and the fewer places there are the less of them stays empty at the end. As above, int8
/// with a scale per token and head: 3536 of two CTAs, 3039 of three.
constexpr int kColumnsOfTwoCtas = 97;
/// Warps that share a ring where more than 16 rows are one tile (decode.cuh), up to as many as a
/// CTA has. One NVIDIA H200, 2026-11-23, bf16, 8 KV heads of 128, 64 requests of 8,192 keys: 8
/// tokens of 32 heads 675 us in tiles of 16 rows, 504 in those of 32 or 64; 4 tokens of 128 heads
/// 1068, 803 and 905; 8 tokens 2005, 1577 and 1765.
constexpr int kMostRowWarps = 2;
/// Of 128 rows.
constexpr std::array kWideDecodeTiles = {DecodeTile{128, 2, 8, 2}, DecodeTile{128, 1, 8, 3}};
/// Where a CTA has a multiprocessor to itself.
constexpr std::array kLoneDecodeTiles = {DecodeTile{128, 2, 8, 3}, DecodeTile{128, 1, 8, 4}};
/// Of pairs of heads, whose steps are twice as large. One NVIDIA H200, 2026-11-30, one request of
/// 128k keys, 32/8 heads, D128, int8 and fp8 with a scale per token and head, us: {8, 2} 90.8 and
/// 91.4, {8, 3} 84.8 and 84.2, {8, 4} 89.0 and 87.9; alone, two CTAs of {4, 3}, 86.7 and 87.6.
constexpr std::array kLonePairTiles = {DecodeTile{128, 1, 8, 3}};

/// Whether decode.cuh may copy codes and scales together (cells.cuh): scales lie behind the codes
/// of their cell, rows of a tile start alike in every block, and 32 bits count its bytes.
bool has_cells(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const auto in_cells = [&](const void* codes, int width, const float* scales,
                            attn::i64 token_stride, attn::i64 head_stride) {
    return scales_follow_codes({codes, width, scales, kv.block_stride, token_stride, head_stride,
                                kv.scale_block_stride, kv.scale_slot_stride, kv.scale_head_stride});
  };
  constexpr attn::i64 kMostStride = attn::i64{1} << 27;
  return has_token_head_scales(params) && kv.block_stride % 32 == 0 && params.head_size % 32 == 0 &&
         params.v_head_size % 32 == 0 && kv.token_stride_key <= kMostStride &&
         kv.token_stride_value <= kMostStride &&
         in_cells(kv.key, params.head_size, kv.key_scales, kv.token_stride_key,
                  kv.head_stride_key) &&
         in_cells(kv.value, params.v_head_size, kv.value_scales, kv.token_stride_value,
                  kv.head_stride_value);
}

/// Whether the cells of pairs of KV heads follow each other, from multiples of 8 bytes on.
bool has_pairs_of_cells(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const int aligned = Alignment()
                          .pointer(kv.key)
                          .pointer(kv.value)
                          .bytes(kv.token_stride_key)
                          .bytes(kv.token_stride_value)
                          .common_bytes();
  return has_cells(params) && params.num_kv_heads % 2 == 0 && aligned % 8 == 0 &&
         kv.head_stride_key == params.head_size + attn::kCellScaleBytes &&
         kv.head_stride_value == params.v_head_size + attn::kCellScaleBytes;
}

/// Whether no tile of the decode kernel has more than half of its rows.
bool has_half_tiles(const attn::AttendParams& params) {
  return params.batch_invariant == 0 && max_packed_rows(params) <= kDecodeRows / 2;
}

/// O of 256 columns and 16 rows takes 128 registers: a few too many from 184 columns on, and more
/// from 136 on where codes are decoded beside it. Transposed products have half of them.
int allowed_spill_bytes(const attn::AttendParams& params) {
  if (has_half_tiles(params)) return 0;
  const int columns = std::max(params.head_size, params.v_head_size);
  if (key_bytes(params) == 1) return columns > 128 ? 176 : 0;
  return columns > 176 ? 32 : 0;
}

/// O of 112 to 128 columns and S of 64 keys, 32 rows a warp, take 176 registers or more. The rest
/// does for 128 columns, whose addresses are simple, without ALiBi; else up to 128 bytes were seen
/// to spill, and 374 where ALiBi goes by global positions, which context-parallel ranks alone do.
int allowed_prefill_spill_bytes(const attn::AttendParams& params) {
  const int columns = std::max(params.head_size, params.v_head_size);
  if (key_bytes(params) == 1 || columns <= 104 || columns > 128) return 0;
  const bool is_square = params.head_size == 128 && params.v_head_size == 128;
  if (attn::is_global(params.score.alibi)) return 400;
  return is_square && params.score.alibi == attn::Alibi::kNone ? 0 : 144;
}

attn::DecodeLayout layout_of(const DecodeTile& tile, const attn::AttendParams& params) {
  const int shared = tile.row_warps * tile.heads;
  return attn::decode_layout(tile.warps / shared, shared, tile.all_stages(), params.head_size,
                             params.v_head_size, key_bytes(params),
                             size_of_element(value_element(params)), has_cells(params), tile.heads);
}

int ctas_of(const PrefillTile&) { return 1; }
int ctas_of(const DecodeTile& tile) { return tile.ctas; }

/// The first of `tiles` that fits, or null.
template <typename Tile, std::size_t kCount>
const Tile* find_tile(const std::array<Tile, kCount>& tiles, const Target& target,
                      const attn::AttendParams& params) {
  const int columns = std::max(params.head_size, params.v_head_size);
  for (const Tile& tile : tiles) {
    // A multiprocessor has 1 KiB more than a CTA may take, and takes 1 KiB of every CTA.
    const int bytes = layout_of(tile, params).total + kTiledStaticSharedBytes + 1024;
    if (columns <= tile.max_columns && key_bytes(params) == tile.element_bytes &&
        ctas_of(tile) * bytes <= target.max_shared_bytes + 1024) {
      return &tile;
    }
  }
  return nullptr;
}
template <typename Tile, std::size_t kCount>
std::string tile_misfit(const std::array<Tile, kCount>& tiles, const Target& target,
                        const attn::AttendParams& params) {
  if (find_tile(tiles, target, params) != nullptr) return "";
  return fmt::format("attend of head_size {} needs more shared memory than {} bytes",
                     std::max(params.head_size, params.v_head_size), target.max_shared_bytes);
}
template <typename Tile, std::size_t kCount>
const Tile& first_that_fits(const std::array<Tile, kCount>& tiles, const Target& target,
                            const attn::AttendParams& params) {
  if (const Tile* tile = find_tile(tiles, target, params)) return *tile;
  fail(ErrorKind::kUnsupported, "{}", tile_misfit(tiles, target, params));
}

/// Of int8 scores: products take 32 codes at a time.
std::string int8_element_misfit(const attn::AttendParams& params) {
  const attn::Element value = value_element(params);
  if (params.query_element != attn::Element::kI8 || params.kv.element != attn::Element::kI8 ||
      (value != attn::Element::kI8 && !is_16_bit(value))) {
    return fmt::format("scores of int8 codes of {} queries over {} keys and {} values",
                       short_name(params.query_element), short_name(params.kv.element),
                       short_name(value));
  }
  if (!is_paged(params)) return "scores of int8 codes over contiguous keys";
  for (const int size : {params.head_size, params.v_head_size}) {
    if (size % 32 != 0) {
      return fmt::format("scores of int8 codes: head size {} is not a multiple of 32", size);
    }
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

/// Why the tiled kernels cannot multiply and decode these elements.
std::string tiled_element_misfit(const attn::AttendParams& params) {
  const attn::KvParams& kv = params.kv;
  const attn::Element query = params.query_element;
  const bool codes = kv.element == attn::Element::kE4M3 || kv.element == attn::Element::kE5M2 ||
                     (kv.element == attn::Element::kI8 && has_token_head_scales(params));
  // e4m3 queries are multiplied in f16, as are plain codes.
  const bool e4m3_query = query == attn::Element::kE4M3 && codes &&
                          !has_token_head_scales(params) && kv.round_dequantized == 0;
  if (has_int8_scores(params)) return int8_element_misfit(params);
  if (!e4m3_query && !is_16_bit(query)) {
    return fmt::format("{} queries over {} keys: it multiplies 16 bits", short_name(query),
                       short_name(kv.element));
  }
  if (!e4m3_query && kv.element != query && !codes) {
    return fmt::format("{} queries over {} keys: it multiplies elements of one type",
                       short_name(query), short_name(kv.element));
  }
  if (params.e4m3_probability != 0) return "probabilities in e4m3: it keeps them in 16 bits";
  return "";
}

std::string tiled_head_misfit(int size) {
  if (size % 8 != 0) return fmt::format("head size {} is not a multiple of 8", size);
  return size > 256 ? fmt::format("head size {} is more than 256", size) : "";
}

}  // namespace

bool is_paged(const attn::AttendParams& params) { return params.kv.block_table != nullptr; }

bool is_16_bit(attn::Element element) {
  return element == attn::Element::kBF16 || element == attn::Element::kF16;
}

int key_bytes(const attn::AttendParams& params) { return size_of_element(params.kv.element); }

bool has_int8_scores(const attn::AttendParams& params) {
  return params.int8.query_scale != nullptr;
}

attn::Element value_element(const attn::AttendParams& params) {
  if (has_values_apart(params)) return attn::Element::kF16;
  return has_int8_scores(params) ? params.int8.value_element : params.kv.element;
}

bool scales_first(const attn::AttendParams& params) {
  const attn::ScoreParams& score = params.score;
  return score.soft_cap > 0.0f || score.alibi != attn::Alibi::kNone ||
         !(score.softmax_scale > 0.0f);
}

std::string alibi_constant(attn::Alibi alibi) {
  return fmt::format("attn::Alibi::{}", alibi_name(alibi));
}

std::string problem_name(const attn::AttendParams& params) {
  std::string name = fmt::format(" d{}", params.head_size);
  if (params.v_head_size != params.head_size) name += fmt::format("/{}", params.v_head_size);
  name += fmt::format(" {}", short_name(params.query_element));
  if (params.kv.element != params.query_element) {
    name += fmt::format(" kv {}", short_name(params.kv.element));
    if (has_token_head_scales(params)) name += " per token and head";
  }
  if (params.output_element != params.query_element) {
    name += fmt::format(" to {}", short_name(params.output_element));
  }
  name += is_paged(params) ? fmt::format(" paged {}", params.kv.block_size) : " ragged";
  if (params.score.soft_cap > 0.0f) name += " soft cap";
  if (params.score.alibi != attn::Alibi::kNone) name += " alibi";
  if (attn::is_global(params.score.alibi)) name += " by global positions";
  return name;
}

std::string tiled_misfit(const attn::AttendParams& params) {
  constexpr int kLeastCopyBytes = 4;
  if (std::string reason = tiled_element_misfit(params); !reason.empty()) return reason;
  for (const int size : {params.head_size, params.v_head_size}) {
    if (std::string reason = tiled_head_misfit(size); !reason.empty()) return reason;
  }
  if (is_paged(params) && params.kv.block_size % 16 != 0) {
    return fmt::format("blocks of {} keys: it takes multiples of 16", params.kv.block_size);
  }
  if (copy_bytes(params) < kLeastCopyBytes) {
    return fmt::format("rows of keys and values lie on multiples of {} bytes, {} are needed",
                       copy_bytes(params), kLeastCopyBytes);
  }
  if (query_copy_bytes(params) < kLeastCopyBytes) {
    return fmt::format("rows of queries lie on multiples of {} bytes, {} are needed",
                       query_copy_bytes(params), kLeastCopyBytes);
  }
  return "";
}

std::string prefill_tile_misfit(const Target& target, const attn::AttendParams& params) {
  return has_token_head_scales(params) ? tile_misfit(kTokenHeadPrefillTiles, target, params)
                                       : tile_misfit(kPrefillTiles, target, params);
}

std::string decode_tile_misfit(const Target& target, const attn::AttendParams& params) {
  return tile_misfit(kDecodeTiles, target, params);
}

std::int64_t max_packed_rows(const attn::AttendParams& params) {
  return std::int64_t{params.max_query_len} * (params.num_heads / params.num_kv_heads);
}

std::int64_t num_row_tiles(const attn::AttendParams& params, int rows, int parts) {
  return ceil_quotient(max_packed_rows(params), rows) * params.num_requests * params.num_kv_heads *
         parts;
}

LaunchShape row_tiles(const AttendKernel& kernel, const attn::AttendParams& params, int parts) {
  LaunchShape shape;
  shape.grid_x = num_row_tiles(params, kernel.tile_rows, parts) / kernel.heads;
  shape.threads = kernel.threads;
  shape.shared_bytes = kernel.shared_bytes;
  return shape;
}

bool has_few_rows(const attn::AttendParams& params) {
  return params.batch_invariant == 0 && max_packed_rows(params) <= kMostDecodeRows;
}

AttendKernel prefill_kernel(const Target& target, const attn::AttendParams& params) {
  const PrefillTile& tile = has_token_head_scales(params)
                                ? first_that_fits(kTokenHeadPrefillTiles, target, params)
                                : first_that_fits(kPrefillTiles, target, params);
  AttendKernel kernel;
  kernel.spec.source = "attention/prefill.cuh";
  kernel.spec.function = "attn::prefill";
  kernel.spec.constants = problem_constants(params);
  kernel.spec.constants.insert(kernel.spec.constants.end(),
                               {{"int kWarps", std::to_string(tile.warps)},
                                {"int kRowBlocks", std::to_string(tile.row_blocks)},
                                {"int kTileN", std::to_string(tile.tile_n)},
                                {"int kMinCtas", std::to_string(tile.min_ctas)}});
  kernel.spec.allowed_spill_bytes = allowed_prefill_spill_bytes(params);
  kernel.spec.name = "prefill" + problem_name(params);
  kernel.tile_rows = tile.warps * tile.row_blocks * 16;
  kernel.threads = tile.warps * 32;
  kernel.shared_bytes = layout_of(tile, params).total;
  return kernel;
}

namespace {

/// Warps that share a ring for a problem of so many rows, where a tile may have at most
/// `most_rows`.
int row_warps_of(const attn::AttendParams& params, int most_rows) {
  const int most = most_rows == 0 ? kMostRowWarps : most_rows / kDecodeRows;
  int row_warps = 1;
  while (row_warps * 2 <= most && row_warps * kDecodeRows < max_packed_rows(params)) row_warps *= 2;
  return row_warps;
}

/// Of decode.cuh, which has no other forms.
bool is_basic(const DecodeForm& form) {
  return form.entry == "decode" || form.entry == "decode_splits" || form.entry == "decode_segments";
}

/// KV heads that share a ring. Why pairs: cells of 132 bytes take 9 sectors in them and 10 alone,
/// and CTAs of neighbouring heads drift apart until the L2 has lost what they share. One NVIDIA
/// H200, 2026-11-30, 64 requests of 8,192 keys, 8 KV heads, us in pairs and alone, int8 with a
/// scale per token and head: D64 174 and 213, D128 272 and 311, D256 512 and 551; of 16 rows D64
/// 214 and 212, D128 293 and 328, D256 531 and 577. Of whole lines (e4m3, D128) 258 either way.
/// Alone on a multiprocessor they pay for long parts only: 32 of 128k keys 85 and 88, 8k 18 and 17.
int heads_of(const Target& target, const attn::AttendParams& params, const DecodeForm& form) {
  constexpr std::int64_t kLeastKeys = 2048;  // of a part, as far as its page table says
  const bool is_one_tile = params.batch_invariant == 0 && max_packed_rows(params) <= kDecodeRows;
  if (form.heads == 1 || !is_basic(form) || !is_one_tile || !has_pairs_of_cells(params)) return 1;
  const bool is_wide = std::max(params.head_size, params.v_head_size) >= kColumnsOfTwoCtas;
  if (form.heads == 0 && !is_wide && !has_half_tiles(params)) return 1;
  const std::int64_t pairs = num_row_tiles(params, kDecodeRows, form.parts) / 2;
  if (form.heads == 2 || pairs > target.num_sms) return 2;
  const std::int64_t keys = params.kv.block_table_stride * params.kv.block_size / form.parts;
  return pairs * 10 >= std::int64_t{target.num_sms} * 9 && keys >= kLeastKeys ? 2 : 1;
}

template <std::size_t kCount>
std::optional<DecodeTile> find_decode_tile(std::array<DecodeTile, kCount> tiles, int row_warps,
                                           const Target& target, const attn::AttendParams& params,
                                           int heads = 1) {
  for (DecodeTile& tile : tiles) {
    tile.row_warps = row_warps;
    tile.heads = heads;
  }
  const DecodeTile* const tile = find_tile(tiles, target, params);
  if (tile == nullptr || tile->warps < row_warps * heads) return std::nullopt;
  return *tile;
}

/// The tile and whether it has a multiprocessor to itself. Fewer rows where those wanted do not
/// fit.
std::pair<DecodeTile, bool> choose_decode_tile(const Target& target,
                                               const attn::AttendParams& params,
                                               const DecodeForm& form) {
  for (int row_warps = row_warps_of(params, form.most_rows); row_warps > 1; row_warps /= 2) {
    const std::int64_t ctas = num_row_tiles(params, kDecodeRows * row_warps, form.parts);
    const bool lone = form.num_ctas == 0 && ctas <= target.num_sms;
    if (const auto tile = find_decode_tile(kLoneDecodeTiles, row_warps, target, params);
        tile && lone) {
      return {*tile, true};
    }
    if (const auto tile = row_warps == 8
                              ? find_decode_tile(kWideDecodeTiles, row_warps, target, params)
                              : find_decode_tile(kDecodeTiles, row_warps, target, params)) {
      return {*tile, row_warps == 8};
    }
  }
  for (int heads = heads_of(target, params, form); heads > 0; --heads) {
    const std::int64_t tiles = num_row_tiles(params, kDecodeRows, form.parts) / heads;
    const bool is_lone = (form.num_ctas != 0 ? form.num_ctas : tiles) <= target.num_sms;
    const auto lone = heads == 1 ? find_decode_tile(kLoneDecodeTiles, 1, target, params)
                                 : find_decode_tile(kLonePairTiles, 1, target, params, heads);
    if (is_lone && lone) return {*lone, true};
    const auto tile = find_decode_tile(kDecodeTiles, 1, target, params, heads);
    if (tile) return {*tile, false};
  }
  return {first_that_fits(kDecodeTiles, target, params), false};
}

/// What `form` asks for instead of the tables' tile.
void override_tile(const Target& target, const attn::AttendParams& params, const DecodeForm& form,
                   DecodeTile& tile, bool& is_lone) {
  if (form.warps == 0 && form.stages == 0 && form.ctas == 0) return;
  if (form.warps != 0) tile.warps = std::max(form.warps, tile.row_warps * tile.heads);
  if (form.stages != 0) tile.stages = form.stages;
  if (form.ctas != 0) is_lone = form.ctas == 1;
  // States of the streams' rows are beside the layout.
  const int bytes = layout_of(tile, params).total + tile.warps * 128 + 128 + 1024;
  const int most = target.max_shared_bytes + 1024;
  if ((is_lone ? 1 : 2) * bytes <= most) return;
  fail(ErrorKind::kUnsupported,
       "kernel decode: {} warps of {} steps, {} CTAs a multiprocessor: {} bytes of shared memory "
       "each, {} are there",
       tile.warps, tile.all_stages(), is_lone ? 1 : 2, bytes, most);
}

/// Shared memory of a tile in dynamic memory; as a CTA of a cluster it has an inbox too.
int shared_bytes_of(const DecodeTile& tile, const attn::AttendParams& params,
                    const DecodeForm& form) {
  const int bytes = layout_of(tile, params).total;
  if (form.entry != kClusterEntry) return bytes;
  const int rows = has_half_tiles(params) ? kDecodeRows / 2 : kDecodeRows * tile.row_warps;
  return bytes + attn::inbox_bytes(rows, params.v_head_size, form.parts);
}

/// Fewer steps under way where an inbox leaves no room for all.
void make_room(const Target& target, const attn::AttendParams& params, const DecodeForm& form,
               DecodeTile& tile, bool is_lone) {
  const int ctas = is_lone ? 1 : tile.ctas;
  const int most = (target.max_shared_bytes + 1024) / ctas - 1024 - kTiledStaticSharedBytes;
  while (tile.stages > 2 && shared_bytes_of(tile, params, form) > most) --tile.stages;
}

}  // namespace

bool fits_in_cluster(const Target& target, const attn::AttendParams& params,
                     const AttendKernel& kernel) {
  constexpr int kMostOfGrid = 65535;  // in its second and third extent
  return kernel.shared_bytes + kTiledStaticSharedBytes <= target.max_shared_bytes &&
         params.num_requests <= kMostOfGrid && params.num_kv_heads <= kMostOfGrid;
}

AttendKernel decode_kernel(const Target& target, const attn::AttendParams& params,
                           const DecodeForm& form) {
  auto [tile, is_lone] = choose_decode_tile(target, params, form);
  override_tile(target, params, form, tile, is_lone);
  if (form.entry == kClusterEntry) make_room(target, params, form, tile, is_lone);
  AttendKernel kernel;
  kernel.spec.source =
      is_basic(form) ? "attention/decode/decode.cuh" : "attention/decode/forms.cuh";
  kernel.spec.function = "attn::" + form.entry;
  kernel.spec.constants = problem_constants(params);
  kernel.spec.constants.insert(kernel.spec.constants.end(),
                               {{"bool kCells", spec_flag(has_cells(params))},
                                {"bool kTransposed", spec_flag(has_half_tiles(params))},
                                {"int kWarps", std::to_string(tile.warps)},
                                {"int kRowWarps", std::to_string(tile.row_warps)},
                                {"int kHeads", std::to_string(tile.heads)},
                                {"int kRowBlocks", "1"},
                                {"int kStages", std::to_string(tile.all_stages())},
                                {"int kMinCtas", is_lone ? "1" : "2"}});
  if (form.entry == kClusterEntry) {
    kernel.spec.constants.emplace_back("int kParts", std::to_string(form.parts));
  }
  kernel.spec.allowed_spill_bytes = allowed_spill_bytes(params);
  // Of forms that are not chosen by themselves: 176 bytes of joined splits of unequal heads on
  // sm_80, 340 of tiles of 64 rows over e4m3 with a soft cap were seen.
  if (kernel.spec.allowed_spill_bytes > 0 &&
      (tile.row_warps > 1 || form.entry == "decode_joined")) {
    kernel.spec.allowed_spill_bytes += tile.row_warps > 1 ? 168 : 16;
  }
  kernel.spec.name = form.entry + problem_name(params);
  if (tile.row_warps > 1)
    kernel.spec.name += fmt::format(", {} rows", kDecodeRows * tile.row_warps);
  if (tile.heads > 1) kernel.spec.name += fmt::format(", {} KV heads", tile.heads);
  kernel.tile_rows = kDecodeRows * tile.row_warps;
  kernel.heads = tile.heads;
  kernel.threads = tile.warps * 32;
  const attn::DecodeLayout layout = layout_of(tile, params);
  kernel.shared_bytes = shared_bytes_of(tile, params, form);
  kernel.ring_bytes = layout.total - layout.rings;
  if (!is_lone && std::max(params.head_size, params.v_head_size) >= kColumnsOfTwoCtas) {
    kernel.shared_bytes = std::max(kernel.shared_bytes, target.max_shared_bytes / 3 + 1);
  }
  return kernel;
}

}  // namespace attnbench::cuda
