// Launches of kernels/cache/write_mla_cache.cuh.
#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

void check_ds_mla(const attn::MlaCacheWriteParams& p) {
  if (p.kv_lora_rank != attn::kDsMlaLatent || p.rope_head_dim != attn::kDsMlaRope) {
    fail(ErrorKind::kShape,
         "fp8_ds_mla cache: expected kv_lora_rank 512 and rope dim 64, got {} {}", p.kv_lora_rank,
         p.rope_head_dim);
  }
  if (p.source_element != attn::Element::kBF16) {
    fail(ErrorKind::kDtype, "fp8_ds_mla cache: expected bfloat16 input, got {}",
         short_name(p.source_element));
  }
}

void write_ds_mla(Launcher& launcher, const attn::MlaCacheWriteParams& p) {
  check_ds_mla(p);
  VectorSide latents{attn::Element::kBF16, {}};
  latents.alignment.pointer(p.kv_c).stride(p.kv_c_token_stride, attn::Element::kBF16);
  const int vector = widest_vector(4, {}, {latents});
  launch(launcher,
         simple_spec("cache/write_mla_cache.cuh", "write_ds_mla",
                     {{"int kVector", std::to_string(vector)}},
                     "write_mla_cache fp8_ds_mla x" + std::to_string(vector)),
         simple_shape(p.num_slots * 32), p);
}

}  // namespace

void write_mla_cache(Launcher& launcher, const attn::MlaCacheWriteParams& p) {
  if (p.format == attn::MlaEntry::kDsMla) {
    write_ds_mla(launcher, p);
    return;
  }
  const attn::Element cache =
      p.format == attn::MlaEntry::kE4M3 ? attn::Element::kE4M3 : p.source_element;
  VectorSide source{p.source_element, {}};
  source.alignment.pointer(p.kv_c)
      .pointer(p.k_pe)
      .stride(p.kv_c_token_stride, p.source_element)
      .stride(p.k_pe_token_stride, p.source_element);
  VectorSide entries{cache, {}};
  entries.alignment.pointer(p.cache).stride(p.block_stride, cache).stride(p.slot_stride, cache);
  const int vector = widest_vector(16 / size_of_element(p.source_element),
                                   {p.kv_lora_rank, p.rope_head_dim}, {source, entries});
  launch(launcher,
         simple_spec("cache/write_mla_cache.cuh", "write_mla_cache",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"attn::Element kCache", spec_name(cache)},
                      {"int kVector", std::to_string(vector)}},
                     "write_mla_cache " + short_name(p.source_element) + " to " +
                         short_name(cache) + " x" + std::to_string(vector)),
         simple_shape(p.num_slots * ((p.kv_lora_rank + p.rope_head_dim) / vector)), p);
}

void rope_and_write_mla_cache(Launcher& launcher, const attn::RopeParams& rope,
                              const attn::MlaCacheWriteParams& write) {
  cuda::rope(launcher, rope);
  write_mla_cache(launcher, write);
}

void upconvert_ds_mla(Launcher& launcher, const attn::DsMlaUpconvertParams& p) {
  const bool pairs = Alignment()
                         .pointer(p.output)
                         .stride(p.output_token_stride, attn::Element::kBF16)
                         .common_bytes() >= 4;
  if (!pairs) {
    fail(ErrorKind::kUnsupported, "upconvert_ds_mla on CUDA expects rows on multiples of 4 bytes");
  }
  if (p.num_requests == 0) return;
  launch(launcher,
         simple_spec("cache/write_mla_cache.cuh", "upconvert_ds_mla", {}, "upconvert fp8_ds_mla"),
         simple_shape(p.num_rows * 32), p);
}

}  // namespace attnbench::cuda
