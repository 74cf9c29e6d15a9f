// Launches of kernels/cache/write_cache_int8.cuh. A decode that saves its own tokens
// (attention/attend.cpp) comes here where the attention kernel does not store them itself.
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {

/// A thread copies as many columns of a key and of its value as 16 bytes of a value are, or fewer
/// where head size, strides and addresses are not multiples of that: one width for both sides,
/// since it works out a token's place once.
void write_cache_int8(Launcher& launcher, const attn::Int8CacheWriteParams& p) {
  VectorSide codes{attn::Element::kI8, {}};
  codes.alignment.pointer(p.key)
      .bytes(p.key_token_stride)
      .bytes(p.key_head_stride)
      .pointer(p.key_cache)
      .bytes(p.block_stride)
      .bytes(p.slot_stride)
      .bytes(p.head_stride);
  VectorSide values{p.value_element, {}};
  values.alignment.pointer(p.value)
      .stride(p.value_token_stride, p.value_element)
      .stride(p.value_head_stride, p.value_element)
      .pointer(p.value_cache)
      .stride(p.block_stride, p.value_element)
      .stride(p.slot_stride, p.value_element)
      .stride(p.head_stride, p.value_element);
  if (p.slot_mapping == nullptr && p.num_requests == 0) return;
  const int vector =
      widest_vector(16 / size_of_element(p.value_element), {p.head_size}, {codes, values});
  launch(launcher,
         simple_spec("cache/write_cache_int8.cuh", "write_cache_int8",
                     {{"attn::Element kValue", spec_name(p.value_element)},
                      {"int kVector", std::to_string(vector)}},
                     "write_cache_int8 values " + short_name(p.value_element) + " x" +
                         std::to_string(vector)),
         simple_shape(p.num_tokens * p.num_kv_heads * (p.head_size / vector)), p);
}

}  // namespace attnbench::cuda
