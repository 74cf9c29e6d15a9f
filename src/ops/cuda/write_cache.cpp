// Launches of kernels/cache/write_cache*.cuh.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerTokenHead = 2;  // CacheWriteParams::quantise

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

void write_by_vectors(Launcher& launcher, const attn::CacheWriteParams& p) {
  const int vector = choose_vector(p);
  const int load_bytes = vector * size_of_element(p.source_element);
  const int items = load_bytes > 16 ? 2 : 4;
  KernelSpec spec;
  spec.source = "cache/write_cache.cuh";
  spec.function = "attn::write_cache";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"attn::Element kCache", spec_name(p.cache_element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kThreads", std::to_string(kThreads)},
                    {"int kItems", std::to_string(items)}};
  spec.name = "write_cache " + short_name(p.source_element) + " to " + short_name(p.cache_element) +
              " x" + std::to_string(vector);
  const std::int64_t vectors =
      p.num_slots * p.num_kv_heads * (std::max(p.head_size, p.v_head_size) / vector);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(vectors, kThreads * items);
  shape.grid_y = 2;
  shape.threads = kThreads;
  cuda::launch(launcher, spec, shape, p);
}

/// Elements of a thread's load; codes are stored by words of 4 at most, because cells are only
/// aligned to their scale.
int choose_token_head_vector(const attn::CacheWriteParams& p, int width) {
  const int source_bytes = Alignment()
                               .pointer(p.key)
                               .pointer(p.value)
                               .stride(p.key_token_stride, p.source_element)
                               .stride(p.value_token_stride, p.source_element)
                               .stride(width, p.source_element)
                               .common_bytes();
  const int cache_bytes = Alignment()
                              .pointer(p.key_cache)
                              .pointer(p.value_cache)
                              .bytes(p.block_stride)
                              .bytes(p.slot_stride)
                              .bytes(p.head_stride)
                              .common_bytes();
  int vector = 4;
  while (vector > 1 && (width % vector != 0 || cache_bytes < vector ||
                        source_bytes < vector * size_of_element(p.source_element))) {
    vector /= 2;
  }
  return vector;
}

/// One side (0 keys, 1 values), or both when they have one width.
void write_token_heads(Launcher& launcher, const attn::CacheWriteParams& p, int first_side,
                       int num_sides) {
  constexpr int kMostLanes = 32;
  // Why four loads of a head: what is done once a head and thread outweighs the elements otherwise.
  constexpr int kLoads = 4;
  constexpr int kRows = 2;  // heads of a thread, so that their loads overlap
  const int width = first_side == 0 ? p.head_size : p.v_head_size;
  const int vector = choose_token_head_vector(p, width);
  int lanes = 1;
  while (lanes < kMostLanes && lanes * vector * kLoads < width) lanes *= 2;
  KernelSpec spec;
  spec.source = "cache/write_cache_per_token_head.cuh";
  spec.function = "attn::write_cache_per_token_head";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)},
                    {"attn::Element kCache", spec_name(p.cache_element)},
                    {"int kWidth", std::to_string(width)},
                    {"int kVector", std::to_string(vector)},
                    {"int kLanes", std::to_string(lanes)},
                    {"int kRows", std::to_string(kRows)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "write_cache per token-head " + short_name(p.source_element) + " to " +
              short_name(p.cache_element) + " d" + std::to_string(width);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_slots * p.num_kv_heads, kRows * kThreads / lanes);
  shape.grid_y = num_sides;
  shape.threads = kThreads;
  cuda::launch(launcher, spec, shape, p, first_side);
}

}  // namespace

void write_cache(Launcher& launcher, const attn::CacheWriteParams& params) {
  if (params.quantise != kPerTokenHead) {
    write_by_vectors(launcher, params);
  } else if (params.head_size == params.v_head_size) {
    write_token_heads(launcher, params, 0, 2);
  } else {
    write_token_heads(launcher, params, 0, 1);
    write_token_heads(launcher, params, 1, 1);
  }
}

}  // namespace attnbench::cuda
