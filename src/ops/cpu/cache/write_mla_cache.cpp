// Scatter of new latents into the MLA cache (semantics §8.4.1, §8.4.3): an entry is [kv_c | k_pe]
// of a token, copied, as e4m3 with the cache's scale, or packed as "fp8_ds_mla" or
// "fp8_model1_mla".
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "kernels/params_mla.h"
#include "ops/cpu/cache/ds_mla_entry.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/rows.h"

namespace attnbench::cpu {
namespace {

/// By which strides of the cache count; an entry of "fp8_ds_mla" counts in bytes.
attn::Element cache_element(const attn::MlaCacheWriteParams& params) {
  switch (params.format) {
    case attn::MlaEntry::kCopy:
      return params.source_element;
    case attn::MlaEntry::kE4M3:
      return attn::Element::kE4M3;
    case attn::MlaEntry::kDsMla:
    case attn::MlaEntry::kModel1:
      return attn::Element::kU8;
  }
  return attn::Element::kU8;
}

/// The packed format has one size, and reads k_pe back as bf16 whatever it was.
void check_ds_mla(const attn::MlaCacheWriteParams& params) {
  if (params.kv_lora_rank != attn::kDsMlaLatent || params.rope_head_dim != attn::kDsMlaRope) {
    fail(ErrorKind::kShape,
         "fp8_ds_mla cache: expected kv_lora_rank 512 and rope dim 64, got {} {}",
         params.kv_lora_rank, params.rope_head_dim);
  }
  if (params.source_element != attn::Element::kBF16) {
    fail(ErrorKind::kDtype, "fp8_ds_mla cache: expected bfloat16 input, got {}",
         dtype_name(static_cast<Dtype>(params.source_element)));
  }
}

void check_model1(const attn::MlaCacheWriteParams& params) {
  if (params.kv_lora_rank != attn::kModel1Latent || params.rope_head_dim != attn::kModel1Rope) {
    fail(ErrorKind::kShape,
         "fp8_model1_mla cache: expected kv_lora_rank 448 and rope dim 64, got {} {}",
         params.kv_lora_rank, params.rope_head_dim);
  }
  if (params.source_element != attn::Element::kBF16) {
    fail(ErrorKind::kDtype, "fp8_model1_mla cache: expected bfloat16 input, got {}",
         dtype_name(static_cast<Dtype>(params.source_element)));
  }
}

/// Divides, as the cache write of §8.4.1 does.
void store_e4m3(attn::Element source_element, const char* source, int count, float scale,
                float* values, attn::u8* codes) {
  load_wide_row(source_element, source, count, values);
  for (int i = 0; i < count; ++i) codes[i] = encode_e4m3(values[i] / scale);
}

/// `scales` are those behind the block; only kModel1 has any.
void write_entry(const attn::MlaCacheWriteParams& params, attn::i64 token, char* entry,
                 std::uint8_t* scales, float* values) {
  const attn::Element element = params.source_element;
  const char* kv_c = element_at(element, params.kv_c, token * params.kv_c_token_stride);
  const char* k_pe = element_at(element, params.k_pe, token * params.k_pe_token_stride);
  const int latent = params.kv_lora_rank;
  const int rope = params.rope_head_dim;
  switch (params.format) {
    case attn::MlaEntry::kCopy:
      std::memcpy(entry, kv_c, static_cast<std::size_t>(latent * element_size(element)));
      std::memcpy(entry + latent * element_size(element), k_pe,
                  static_cast<std::size_t>(rope * element_size(element)));
      return;
    case attn::MlaEntry::kE4M3: {
      auto* codes = reinterpret_cast<attn::u8*>(entry);
      store_e4m3(element, kv_c, latent, params.k_scale[0], values, codes);
      store_e4m3(element, k_pe, rope, params.k_scale[0], values, codes + latent);
      return;
    }
    case attn::MlaEntry::kDsMla:
      load_wide_row(element, kv_c, latent, values);
      write_ds_mla_entry(values, k_pe, reinterpret_cast<std::uint8_t*>(entry));
      return;
    case attn::MlaEntry::kModel1:
      load_wide_row(element, kv_c, latent, values);
      write_model1_entry(values, k_pe, reinterpret_cast<std::uint8_t*>(entry), scales);
      return;
  }
}

}  // namespace

void write_mla_cache(const attn::MlaCacheWriteParams& params, Workers& workers) {
  if (params.format == attn::MlaEntry::kDsMla) check_ds_mla(params);
  if (params.format == attn::MlaEntry::kModel1) check_model1(params);
  const attn::Element element = cache_element(params);
  workers.pool.parallel_for(params.num_slots, [&](std::int64_t token, int thread) {
    const attn::i64 slot = params.slot_mapping[token];
    if (slot < 0) return;
    FloatArray& line = workers.scratch[static_cast<std::size_t>(thread)].line;
    const attn::i64 block = slot / params.block_size * params.block_stride;
    const attn::i64 offset = slot % params.block_size;
    std::uint8_t* scales = nullptr;
    if (params.format == attn::MlaEntry::kModel1) {
      scales = static_cast<std::uint8_t*>(params.cache) + block +
               model1_scales_at(params.block_size, offset);
    }
    write_entry(params, token,
                element_at(element, params.cache, block + offset * params.slot_stride), scales,
                room_for(line, std::max(params.kv_lora_rank, params.rope_head_dim)));
  });
}

}  // namespace attnbench::cpu
