// Launches of kernels/cache/rope_write.cuh: the rotation, and both in one pass over the keys where
// the rotated keys are the ones that are written. Else the fused operation is the two in turn, with
// the same bytes.
#include "ops/cuda/operations.h"
#include "ops/cuda/vector_choice.h"

namespace attnbench::cuda {
namespace {

constexpr int kRopeThreads = 128;
constexpr int kFusedThreads = 256;

/// Elements of a load: 16 bytes where every address allows it, else single elements.
int choose_vector(const attn::RopeParams& p, Alignment alignment) {
  const int vector = 16 / size_of_element(p.element);
  // GPT-J's pairs lie inside a vector, NeoX' half the rotated part apart.
  const int granule = p.is_neox != 0 ? 2 * vector : vector;
  const int bytes = alignment.pointer(p.query)
                        .pointer(p.key)
                        .pointer(p.cos_sin_cache)
                        .stride(p.query_token_stride, p.element)
                        .stride(p.query_head_stride, p.element)
                        .stride(p.key_token_stride, p.element)
                        .stride(p.key_head_stride, p.element)
                        .common_bytes();
  // Angles of a half rotation start in the middle of their row.
  const int angle_bytes = Alignment().stride(p.rotary_dim / 2, p.cache_element).common_bytes();
  return bytes == 16 && angle_bytes == 16 && p.rotary_dim % granule == 0 ? vector : 1;
}

/// What rope and rope_write have in common; callers add how the work is divided.
KernelSpec rope_spec(const attn::RopeParams& p, int vector) {
  KernelSpec spec;
  spec.source = "cache/rope_write.cuh";
  spec.function = "attn::rope";
  spec.constants = {{"attn::Element kElement", spec_name(p.element)},
                    {"attn::Element kAngles", spec_name(p.cache_element)},
                    {"bool kNeox", spec_flag(p.is_neox != 0)},
                    {"int kVector", std::to_string(vector)}};
  spec.name = std::string("rope ") + (p.is_neox != 0 ? "neox " : "gptj ") + short_name(p.element) +
              " x" + std::to_string(vector);
  return spec;
}

/// Whether one kernel can do both: the keys rotated are the keys written, whole heads of them.
bool can_fuse(const attn::RopeParams& rope, const attn::CacheWriteParams& write) {
  return write.quantise < kPerTokenHead && rope.key != nullptr && rope.key == write.key &&
         rope.key_token_stride == write.key_token_stride &&
         rope.key_head_stride == write.head_size && rope.num_kv_heads == write.num_kv_heads &&
         rope.element == write.source_element && write.num_slots <= rope.num_tokens;
}

}  // namespace

void rope(Launcher& launcher, const attn::RopeParams& p) {
  const int vector = choose_vector(p, Alignment());
  // GPT-J's pairs that lie inside a vector make a part of their own.
  const int part_size = p.is_neox != 0 || vector == 1 ? 2 * vector : vector;
  const int parts = p.rotary_dim / part_size;
  const std::int64_t heads = p.num_heads + (p.key == nullptr ? 0 : p.num_kv_heads);
  KernelSpec spec = rope_spec(p, vector);
  spec.constants.emplace_back("int kParts", std::to_string(parts));
  spec.constants.emplace_back("int kThreads", std::to_string(kRopeThreads));
  LaunchShape shape;
  shape.grid_x = ceil_quotient(p.num_tokens * heads * parts, kRopeThreads);
  shape.threads = kRopeThreads;
  cuda::launch(launcher, spec, shape, p);
}

void rope_and_write_cache(Launcher& launcher, const attn::RopeParams& rope,
                          const attn::CacheWriteParams& write) {
  if (!can_fuse(rope, write)) {
    cuda::rope(launcher, rope);
    cuda::write_cache(launcher, write);
    return;
  }
  // Cells are stored by as many elements as are loaded: 8 bytes of fp8.
  const int vector = 16 / size_of_element(rope.element);
  const int cache_bytes = Alignment()
                              .pointer(write.key_cache)
                              .pointer(write.value_cache)
                              .stride(write.block_stride, write.cache_element)
                              .stride(write.slot_stride, write.cache_element)
                              .stride(write.head_stride, write.cache_element)
                              .common_bytes();
  const bool cells_fit = cache_bytes >= vector * size_of_element(write.cache_element) &&
                         write.head_size % vector == 0 && write.v_head_size % vector == 0;
  Alignment alignment;
  alignment.pointer(write.value).stride(write.value_token_stride, write.source_element);
  KernelSpec spec = rope_spec(rope, cells_fit ? choose_vector(rope, alignment) : 1);
  spec.function = "attn::rope_write";
  spec.constants.emplace_back("attn::Element kCache", spec_name(write.cache_element));
  spec.constants.emplace_back("int kThreads", std::to_string(kFusedThreads));
  spec.name += " and write_cache to " + short_name(write.cache_element);
  LaunchShape shape;
  shape.grid_x = rope.num_tokens;
  shape.threads = kFusedThreads;
  cuda::launch(launcher, spec, shape, rope, write);
}

}  // namespace attnbench::cuda
