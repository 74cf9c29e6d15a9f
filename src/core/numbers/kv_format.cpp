// The table of cache types. The predicates of the header are read off a row, never off a single
// type, so that a new type behaves right wherever its row says the same as an old one's.
#include "core/numbers/kv_format.h"

#include <cstddef>
#include <vector>

#include "core/system/printable.h"
#include "kernels/params_mla.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;
using enum KvScales;

constexpr bool kNoHeads = false;
constexpr bool kHeads = true;
constexpr bool kNoLatents = false;
constexpr bool kLatents = true;

constexpr auto kFormats = every_value<KvFormat>({
    {kAuto, "auto", "bit copies in the type of the keys", std::nullopt, kNone, kHeads, kLatents},
    {kFloat16, "float16", "bit copies of float16", Dtype::kF16, kNone, kHeads, kLatents},
    {kBFloat16, "bfloat16", "bit copies of bfloat16", Dtype::kBF16, kNone, kHeads, kLatents},
    {.value = kFp8,
     .name = "fp8",
     .doc = "fp8_e4m3; fp8_ds_mla of backends that store no other 8-bit latents",
     .codes = Dtype::kE4M3,
     .scales = kTensor,
     .of_heads = kHeads,
     .of_latents = kLatents,
     .usual = kFp8E4M3},
    {kFp8E4M3, "fp8_e4m3", "e4m3 of x / scale", Dtype::kE4M3, kTensor, kHeads, kLatents},
    {kFp8E5M2, "fp8_e5m2", "e5m2 of x / scale", Dtype::kE5M2, kTensor, kHeads, kNoLatents},
    {kInt8PerTokenHead, "int8_per_token_head", "int8 with a scale for each position and head",
     Dtype::kI8, kTokenHead, kHeads, kNoLatents},
    {kFp8PerTokenHead, "fp8_per_token_head", "e4m3 with a scale for each position and head",
     Dtype::kE4M3, kTokenHead, kHeads, kNoLatents},
    {.value = kFp8DsMla,
     .name = "fp8_ds_mla",
     .doc = "latents of DeepSeek's sparse MLA: 512 e4m3, a float32 scale for each 128, 64 bfloat16",
     .codes = Dtype::kE4M3,
     .scales = kEntry,
     .of_heads = kNoHeads,
     .of_latents = kLatents,
     .packed =
         PackedEntry{attn::kDsMlaEntryBytes, attn::kDsMlaLatent, attn::kDsMlaRope, Dtype::kBF16}},
});

}  // namespace

std::span<const KvFormat> enum_rows(KvCacheDtype) { return kFormats; }

const KvFormat& kv_format(KvCacheDtype dtype) { return kFormats[static_cast<std::size_t>(dtype)]; }

bool is_quantised(KvCacheDtype dtype) { return kv_format(dtype).scales != KvScales::kNone; }

bool is_per_token_head(KvCacheDtype dtype) { return kv_format(dtype).scales == kTokenHead; }

bool has_tensor_scales(KvCacheDtype dtype) { return kv_format(dtype).scales == kTensor; }

bool is_e4m3_cache(KvCacheDtype dtype) {
  return has_tensor_scales(dtype) && kv_format(dtype).codes == Dtype::kE4M3;
}

bool has_inner_scales(KvCacheDtype dtype) { return is_per_token_head(dtype) || is_packed(dtype); }

bool is_packed(KvCacheDtype dtype) { return kv_format(dtype).packed.has_value(); }

Dtype kv_element_dtype(KvCacheDtype dtype, Dtype model_dtype) {
  return is_packed(dtype) ? Dtype::kU8 : kv_format(dtype).codes.value_or(model_dtype);
}

std::int64_t inner_scale_bytes(KvCacheDtype dtype) {
  return is_per_token_head(dtype) ? static_cast<std::int64_t>(sizeof(float)) : 0;
}

std::int64_t latent_entry_bytes(KvCacheDtype dtype, Dtype model_dtype, int kv_lora_rank,
                                int qk_rope_head_dim) {
  if (const auto& packed = kv_format(dtype).packed) return packed->bytes;
  const auto size = static_cast<std::int64_t>(dtype_size(kv_element_dtype(dtype, model_dtype)));
  return (std::int64_t{kv_lora_rank} + qk_rope_head_dim) * size;
}

std::string kv_format_names(bool (*has)(const KvFormat&)) {
  std::vector<std::string> names;
  for (const KvFormat& format : kFormats) {
    if (has(format)) names.emplace_back(format.name);
  }
  return either_of(names);
}

}  // namespace attnbench
