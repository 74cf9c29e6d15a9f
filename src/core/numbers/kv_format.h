// The types of the KV cache: one row each, with all that distinguishes one type from another. No
// other code compares with a single type; a backend lists those that it takes in its capability.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  kInt4PerTokenHead,
  kNvfp4,
  kFp8DsMla,
  kFp8Model1Mla,
  kTurboK8V4,
  kTurbo4Bit,
  kTurboK3V4,
  kTurbo3Bit
};

/// Which stored numbers share a scale, and where it is.
enum class KvScales {
  kNone,       // bit copies of keys and values
  kTensor,     // k_scale and v_scale of the problem: one number each, or one a KV head (§5.1)
  kTokenHead,  // a float32 behind the vector of each position and head, found in writing (§5.5)
  kTokenHeadZero,  // the same with a zero point in its low bits, of rotated vectors (§5.6)
  kBlocks,  // an e4m3 for each 16 columns, behind the codes of a page; on top k_scale, v_scale
            // (§5.7)
  kEntry,   // inside of a packed entry
  kSlot     // inside of a slot that a key and its value share (§5.8)
};

/// A latent entry that is a struct of its own instead of one element beside the other.
struct PackedEntry {
  int bytes;
  int kv_lora_rank;  // this one and the next: the only sizes that it has room for
  int qk_rope_head_dim;
  Dtype source;  // the only type of latents that it is made of
  /// Of `bytes`, those that do not lie in the entry but behind all entries of a block (§8.4.6).
  int footer_bytes = 0;
};

/// A slot that holds the key and the value of a position and head in codes of their own, one behind
/// the other (§5.8).
struct SlotCodes {
  int key_bits;  // 8: e4m3; fewer: indices of centroids of the rotated key, whose norm follows
  int value_bits;
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
  /// Columns that a code holds: 2 where a byte has two codes, the even column in the low nibble.
  int columns_of_code = 1;
  /// Where scales is kSlot.
  std::optional<SlotCodes> slot = std::nullopt;
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
/// k_scale and v_scale of the problem count, alone or on top of scales in the cache.
bool reads_tensor_scales(KvCacheDtype dtype);
/// Vectors are rotated before they are quantised (§5.6), so queries and outputs are too.
bool is_rotated(KvCacheDtype dtype);
/// A key and its value share a slot, in codes of different widths (§5.8).
bool shares_slots(KvCacheDtype dtype);
/// Bytes of the key in such a slot, which are in front of those of the value; 0 for other types.
int slot_key_bytes(KvCacheDtype dtype, int head_size);
int slot_value_bytes(KvCacheDtype dtype, int head_size);
/// Centroids of rotated keys, 2^key_bits of them in ascending order: the best for columns that are
/// distributed as N(0, 1 / head_size), as those of a rotated vector of length 1 are. Empty for keys
/// in e4m3. `head_size` >= 1.
std::vector<float> key_centroids(const SlotCodes& slot, int head_size);
/// Scales lie in the cache itself, between the codes.
bool has_inner_scales(KvCacheDtype dtype);
bool is_packed(KvCacheDtype dtype);
/// Bytes of an entry that lie behind all entries of its block; 0 but for some packed ones.
int footer_bytes(KvCacheDtype dtype);

/// Element type in which the cache stores K and V or latents, bytes for packed entries;
/// e5m2_as_e4m3 is honoured only by TRITON_ATTN, so it is the caller's to apply.
Dtype kv_element_dtype(KvCacheDtype dtype, Dtype model_dtype);

/// Elements of the cache that the vector of a position and head takes with all scales of its own;
/// of slots that keys and values share, half of one, its byte of padding included.
int stored_width(KvCacheDtype dtype, int head_size);
/// The same in bytes.
std::int64_t stored_vector_bytes(KvCacheDtype dtype, Dtype model_dtype, int head_size);
/// Why a cache of heads cannot have vectors of this size, a refusal; empty where it can.
std::string stored_size_misfit(KvCacheDtype dtype, int head_size);
/// Bytes of the latent entry of one position.
std::int64_t latent_entry_bytes(KvCacheDtype dtype, Dtype model_dtype, int kv_lora_rank,
                                int qk_rope_head_dim);

/// Why a word that engines have for a type of their cache is none here (§5.9); empty for other
/// words.
std::string_view refused_kv_format(std::string_view word);

/// "fp8, fp8_e4m3 or fp8_e5m2": the names of the types for which `has` is true, in the order of the
/// table.
std::string kv_format_names(bool (*has)(const KvFormat&));

}  // namespace attnbench
