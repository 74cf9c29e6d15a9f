// The types of the KV cache: one row each, with all that distinguishes one type from another. No
// other code compares with a single type; a backend lists those that it takes in its capability.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/enum_names.h"
#include "core/numbers/dtype.h"

namespace attnbench {

/// Names and meanings are in the table of kv_format.cpp.
enum class KvCacheDtype {
  kAuto,
  kFloat16,
  kBFloat16,
  kFp8,
  kFp8E4M3,
  kFp8E5M2,
  kInt8PerTokenHead,
  kFp8PerTokenHead,
  kFp8DsMla
};

/// Which stored numbers share a scale, and where it is.
enum class KvScales {
  kNone,       // bit copies of keys and values
  kTensor,     // k_scale and v_scale of the problem: one number each, or one a KV head (§5.1)
  kTokenHead,  // a float32 behind the vector of each position and head, found in writing (§5.5)
  kEntry       // inside of a packed entry
};

/// A latent entry that is a struct of its own instead of one element beside the other.
struct PackedEntry {
  int bytes;
  int kv_lora_rank;  // this one and the next: the only sizes that it has room for
  int qk_rope_head_dim;
  Dtype source;  // the only type of latents that it is made of
};

struct KvFormat {
  KvCacheDtype value;
  const char* name;
  const char* doc;
  std::optional<Dtype> codes;  // of the stored numbers; none: the type of the keys
  KvScales scales;
  bool of_heads;    // stores keys and values by head: decoder and encoder_decoder
  bool of_latents;  // stores the latent of MLA
  std::optional<PackedEntry> packed = std::nullopt;
  /// A general name: the type that it means where a backend has that one.
  std::optional<KvCacheDtype> usual = std::nullopt;
};

/// All types, in the order of the enumerators.
std::span<const KvFormat> enum_rows(KvCacheDtype);

const KvFormat& kv_format(KvCacheDtype dtype);

bool is_quantised(KvCacheDtype dtype);  // no bit copy
bool is_per_token_head(KvCacheDtype dtype);
/// The scales are k_scale and v_scale of the problem: the formats of 8-bit floats.
bool has_tensor_scales(KvCacheDtype dtype);
/// The same with codes in e4m3: what matrix units multiply with e4m3 queries.
bool is_e4m3_cache(KvCacheDtype dtype);
/// Scales lie in the cache itself, between the codes.
bool has_inner_scales(KvCacheDtype dtype);
bool is_packed(KvCacheDtype dtype);

/// Element type in which the cache stores K and V or latents, bytes for packed entries;
/// e5m2_as_e4m3 is honoured only by TRITON_ATTN, so it is the caller's to apply.
Dtype kv_element_dtype(KvCacheDtype dtype, Dtype model_dtype);

/// Bytes of the scale behind the vector of a position and head; 0 without one.
std::int64_t inner_scale_bytes(KvCacheDtype dtype);
/// Bytes of the latent entry of one position.
std::int64_t latent_entry_bytes(KvCacheDtype dtype, Dtype model_dtype, int kv_lora_rank,
                                int qk_rope_head_dim);

/// "fp8, fp8_e4m3 or fp8_e5m2": the names of the types for which `has` is true, in the order of the
/// table.
std::string kv_format_names(bool (*has)(const KvFormat&));

}  // namespace attnbench
