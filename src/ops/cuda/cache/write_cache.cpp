// Launches of kernels/cache/write_cache*.cuh. Copies and codes by a given scale go by vectors,
// whatever row they are of. A scale for each token and head needs all of a head before its first
// code, so there the threads of a head work together; cells are then written whole where their
// layout allows it.
#include <algorithm>
#include <optional>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

/// Elements of a thread's load: its bytes and those of its store are aligned, both widths are
/// multiples, and neither is more than 16 bytes except where a store of 16 bytes needs more loads.
int choose_vector(const attn::CacheWriteParams& p) {
  const int source_bytes = Alignment()
                               .pointer(p.key)
                               .pointer(p.value)
                               .stride(p.key_token_stride, p.source_element)
                               .stride(p.value_token_stride, p.source_element)
                               .common_bytes();
  const int cache_bytes = Alignment()
                              .pointer(p.key_cache)
                              .pointer(p.value_cache)
                              .stride(p.block_stride, p.cache_element)
                              .stride(p.slot_stride, p.cache_element)
                              .stride(p.head_stride, p.cache_element)
                              .common_bytes();
  const auto fits = [&](int vector) {
    const int load = vector * size_of_element(p.source_element);
    const int store = vector * size_of_element(p.cache_element);
    return p.head_size % vector == 0 && p.v_head_size % vector == 0 && store <= 16 &&
           std::min(load, 16) <= source_bytes && store <= cache_bytes;
  };
  int vector = 16;
  while (vector > 1 && !fits(vector)) vector /= 2;
  return vector;
}

/// Keys and values in one launch, a y of the grid each.
void write_by_vectors(Launcher& launcher, const attn::CacheWriteParams& p) {
  // Measured on one NVIDIA H200, 2026-11-21, 65536 tokens of 8 x 128 from bf16 to e4m3: {64, 4}
  // 3808 GB/s, {128, 4} 3777, {256, 4} 3453, {64, 2} 3611, {64, 8} 3139; by stores of 8 bytes below
  // 2940.
  constexpr int kThreads = 64;
  constexpr int kItems = 4;
  const int vector = choose_vector(p);
  KernelSpec spec;
  spec.source = "cache/write_cache.cuh";
  spec.function = "attn::write_cache";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"attn::Element kCache", spec_name(p.cache_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kThreads", std::to_string(kThreads)},
                    {"int kItems", std::to_string(kItems)}};
  spec.name = "write_cache " + short_name(p.source_element) + " to " + short_name(p.cache_element) +
              " x" + std::to_string(vector);
  const std::int64_t vectors =
      p.num_slots * p.num_kv_heads * (std::max(p.head_size, p.v_head_size) / vector);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(vectors, kThreads * kItems);
  shape.grid_y = 2;
  shape.threads = kThreads;
  cuda::launch(launcher, spec, shape, p);
}

constexpr int kTokenHeadThreads = 128;

/// How the per-token-head kernel deals out the heads of one side.
struct TokenHeadShape {
  int vector = 1;  // elements of a thread's load
  int lanes = 1;   // threads of a head
  int rows = 1;    // heads of a thread, so that their loads overlap
  bool staged = false;
};

/// What every head of key and value starts on a multiple of.
int source_alignment(const attn::CacheWriteParams& p, int width) {
  return Alignment()
      .pointer(p.key)
      .pointer(p.value)
      .stride(p.key_token_stride, p.source_element)
      .stride(p.value_token_stride, p.source_element)
      .stride(width, p.source_element)
      .common_bytes();
}

/// Whether the cells of a token, codes and scale of each head, lie together on 16 bytes.
bool has_whole_cells(const attn::CacheWriteParams& p, int width) {
  const auto in_cells = [&](const void* codes, const float* scales) {
    return scales_follow_codes({codes, width, scales, p.block_stride, p.slot_stride, p.head_stride,
                                p.scale_block_stride, p.scale_slot_stride, p.scale_head_stride});
  };
  const int alignment = Alignment()
                            .pointer(p.key_cache)
                            .pointer(p.value_cache)
                            .bytes(p.block_stride)
                            .bytes(p.slot_stride)
                            .common_bytes();
  return alignment == 16 && in_cells(p.key_cache, p.key_scales) &&
         in_cells(p.value_cache, p.value_scales) && p.head_stride == width + 4 &&
         p.slot_stride == p.num_kv_heads * p.head_stride;
}

/// By loads of 32 bytes and stores of 16, if the heads that a CTA does at once are whole tokens.
/// Measured as above, e4m3 and int8: four heads a thread 3978 and 3973 GB/s, two 3657 and 3629;
/// with 256 threads 3971 and 3943. Loads of 16 bytes were slower still before slots were found once
/// a token, 3421 and 3187 against 3813 and 3703.
std::optional<TokenHeadShape> staged_shape(const attn::CacheWriteParams& p, int width) {
  TokenHeadShape shape;
  shape.vector = 32 / size_of_element(p.source_element);
  shape.staged = true;
  while (shape.lanes < width / shape.vector) shape.lanes *= 2;
  shape.rows = 4;
  const int rows_of_cta = shape.lanes > 32 ? 0 : shape.rows * kTokenHeadThreads / shape.lanes;
  if (!has_whole_cells(p, width) || source_alignment(p, width) < 16 || rows_of_cta == 0 ||
      width % shape.vector != 0 || rows_of_cta % p.num_kv_heads != 0) {
    return std::nullopt;
  }
  return shape;
}

/// Codes are stored by words of 4 at most, because cells are only aligned to their scale.
TokenHeadShape direct_shape(const attn::CacheWriteParams& p, int width) {
  constexpr int kMostLanes = 32;
  // Why four loads of a head: what is done once a head and thread outweighs the elements otherwise.
  constexpr int kLoads = 4;
  const int cache_bytes = Alignment()
                              .pointer(p.key_cache)
                              .pointer(p.value_cache)
                              .bytes(p.block_stride)
                              .bytes(p.slot_stride)
                              .bytes(p.head_stride)
                              .common_bytes();
  TokenHeadShape shape;
  shape.vector = 4;
  while (shape.vector > 1 &&
         (width % shape.vector != 0 || cache_bytes < shape.vector ||
          source_alignment(p, width) < shape.vector * size_of_element(p.source_element))) {
    shape.vector /= 2;
  }
  while (shape.lanes < kMostLanes && shape.lanes * shape.vector * kLoads < width) shape.lanes *= 2;
  shape.rows = 2;
  return shape;
}

/// One side (0 keys, 1 values), or both when they have one width.
void write_token_heads(Launcher& launcher, const attn::CacheWriteParams& p, int first_side,
                       int num_sides) {
  const int width = first_side == 0 ? p.head_size : p.v_head_size;
  const TokenHeadShape by = staged_shape(p, width).value_or(direct_shape(p, width));
  KernelSpec spec;
  spec.source = "cache/write_cache_per_token_head.cuh";
  spec.function = "attn::write_cache_per_token_head";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"attn::Element kCache", spec_name(p.cache_element)},
                    {"int kWidth", std::to_string(width)},
                    {"int kVector", std::to_string(by.vector)},
                    {"int kLanes", std::to_string(by.lanes)},
                    {"int kRows", std::to_string(by.rows)},
                    {"bool kTruncate", spec_flag(p.int8_truncate != 0)},
                    {"bool kStaged", spec_flag(by.staged)},
                    {"int kHeads", std::to_string(by.staged ? p.num_kv_heads : 0)},
                    {"int kThreads", std::to_string(kTokenHeadThreads)}};
  spec.name = "write_cache per token-head " + short_name(p.source_element) + " to " +
              short_name(p.cache_element) + " d" + std::to_string(width);
  LaunchShape shape;
  shape.grid_x =
      ceil_quotient(p.num_slots * p.num_kv_heads, by.rows * kTokenHeadThreads / by.lanes);
  shape.grid_y = num_sides;
  shape.threads = kTokenHeadThreads;
  cuda::launch(launcher, spec, shape, p, first_side);
}

/// Codes of 4 bits are stored by words, so cells start on 4 bytes.
void check_packed_cells(const attn::CacheWriteParams& p) {
  const int bytes = Alignment()
                        .pointer(p.key_cache)
                        .pointer(p.value_cache)
                        .bytes(p.block_stride)
                        .bytes(p.slot_stride)
                        .bytes(p.head_stride)
                        .common_bytes();
  if (bytes >= 4) return;
  fail(ErrorKind::kUnsupported,
       "write_cache of 4-bit codes: cells lie on multiples of {} bytes, 4 "
       "are needed",
       bytes);
}

/// One side or both, as write_token_heads(); a head has `lanes` threads.
void write_packed(Launcher& launcher, const attn::CacheWriteParams& p, int first_side,
                  int num_sides) {
  check_packed_cells(p);
  const int width = first_side == 0 ? p.head_size : p.v_head_size;
  const bool is_int4 = p.quantise == kInt4;
  // Why 8 columns at least: a word of codes.
  const int lanes = is_int4 ? std::clamp(width / 8, 1, 32) : width / attn::kKvScaleBlock;
  const bool wide = source_alignment(p, width) >= 16;
  KernelSpec spec;
  spec.source = "cache/write_cache_packed.cuh";
  spec.function = is_int4 ? "attn::write_cache_int4" : "attn::write_cache_nvfp4";
  spec.constants = {
      {"attn::Element kSource", spec_name(p.source_element)},
      {"int kWidth", std::to_string(width)},
      {"int kLoad", std::to_string(wide ? 16 / size_of_element(p.source_element) : 1)},
      {"int kThreads", std::to_string(kTokenHeadThreads)}};
  if (is_int4) {
    spec.constants.emplace_back("int kVector", std::to_string(width / lanes));
    spec.constants.emplace_back("int kLanes", std::to_string(lanes));
  }
  spec.name = std::string("write_cache ") + (is_int4 ? "int4 " : "nvfp4 ") +
              short_name(p.source_element) + " d" + std::to_string(width);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_slots * p.num_kv_heads * lanes, kTokenHeadThreads);
  shape.grid_y = num_sides;
  shape.threads = kTokenHeadThreads;
  cuda::launch(launcher, spec, shape, p, first_side);
}

/// Keys and values at once, a warp for both of a head. Cells are written byte by byte, as slots lie
/// on even bytes only.
void write_slots(Launcher& launcher, const attn::CacheWriteParams& p) {
  if (p.head_size != p.v_head_size) {
    fail(ErrorKind::kUnsupported, "write_cache of slots: head sizes {} and {} of key and value",
         p.head_size, p.v_head_size);
  }
  const int key_bits = attn::slot_key_bits(p.coding);
  const int value_bits = attn::slot_value_bits(p.coding);
  KernelSpec spec;
  spec.source = "cache/write_cache_slots.cuh";
  spec.function = "attn::write_cache_slots";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"int kWidth", std::to_string(p.head_size)},
                    {"int kKeyBits", std::to_string(key_bits)},
                    {"int kValueBits", std::to_string(value_bits)},
                    {"int kThreads", std::to_string(kTokenHeadThreads)}};
  spec.name = fmt::format("write_cache slots k{}v{} {} d{}", key_bits, value_bits,
                          short_name(p.source_element), p.head_size);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_slots * p.num_kv_heads, kTokenHeadThreads / 32);
  shape.threads = kTokenHeadThreads;
  cuda::launch(launcher, spec, shape, p);
}

}  // namespace

void write_cache(Launcher& launcher, const attn::CacheWriteParams& params) {
  if (params.quantise < kPerTokenHead) return write_by_vectors(launcher, params);
  if (params.quantise == kSlots) return write_slots(launcher, params);
  const auto write = params.quantise == kPerTokenHead ? write_token_heads : write_packed;
  if (params.head_size == params.v_head_size) {
    write(launcher, params, 0, 2);
  } else {
    write(launcher, params, 0, 1);
    write(launcher, params, 1, 1);
  }
}

}  // namespace attnbench::cuda
