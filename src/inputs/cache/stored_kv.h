// Keys, values and queries in the form in which a cache or kernel holds them, computed straight
// from the definitions in float32: what a cache write is checked against byte by byte, and what the
// reference reads, so that the error of a kernel does not contain that of the cache's format.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/make_inputs.h"
#include "metadata/mask/kernel_rules.h"

namespace attnbench {

/// K and V as the cache holds them, computed straight from semantics §5.1 and §5.5 to §5.8: what a
/// correct cache write stores, and the values that the reference reads (§15.1).
struct StoredKv {
  Tensor key_codes;          // [S, Hk, D] in the cache's element type; two in a byte: [S, Hk, D/2];
                             // where slots are shared, the key's bytes with its norm
  Tensor value_codes;        // [S, Hk, Dv]; the value's bytes with step and least value
  Tensor key_scales;         // f32 [S, Hk], per-token-head and int8 levels; e4m3 [S, Hk, D/16] of
                             // nvfp4; else empty
  Tensor value_scales;       // the same, but not of int8 levels
  Tensor key_dequantized;    // [S, Hk, D] in f32, or in attention.dtype where that has every value
  Tensor value_dequantized;  // [S, Hk, Dv]; both are empty where the cache only copies bits: the
                             // reference reads key and value
};

struct StoreRule {
  KvCacheDtype dtype = KvCacheDtype::kAuto;
  Dtype element = Dtype::kBF16;  // e5m2_as_e4m3 already applied
  std::vector<float> k_scale;    // [1] or [Hk]; per-tensor fp8 only
  std::vector<float> v_scale;    // [1] or [Hk]
  PthInt8Round int8_round = PthInt8Round::kHalfAway;
  /// What dequantised values are rounded to; nothing = they stay float32.
  std::optional<Dtype> dequantized_rounding;
  /// 1: int8 keys and values; 2: int8 keys, values as they are (§11.1). Then `element` is int8.
  int int8_level = 0;

  bool operator==(const StoreRule&) const = default;
};

/// Whether the cache holds something else than the keys and values themselves.
bool cache_is_quantised(const Problem& problem);

/// How a backend of these rules stores the problem's keys and values.
StoreRule resolve_store_rule(const Problem& problem, const KernelRules& rules);

/// What becomes of keys and values that a cache stores as they are: copies of their own, or views
/// of the inputs, which then outlive what is stored.
enum class PlainKv { kCopied, kViewed };

/// Errors: E-DTYPE when an unquantised cache has another element type than the keys; E-SHAPE and
/// E-VALUE for scales of a wrong number, not finite, or <= 0.
StoredKv store_kv(const AttentionInputs& inputs, const StoreRule& rule,
                  PlainKv plain = PlainKv::kCopied);

/// The query as the kernel reads it. Where it is e4m3: codes rn_e4m3(q * (1/q_scale)) and
/// q_dequantized = f32(code) * q_scale; int8 levels: codes and a scale per token and head (§11.2
/// mode 2); everything else: the query itself.
struct StoredQuery {
  Tensor query;                       // [T_pad, H, D], e4m3, int8 or attention.dtype
  std::optional<Tensor> dequantized;  // f32 [T_pad, H, D] when quantised or rotated (§5.6)
  float scale = 1.0f;                 // q_scale when e4m3
  Tensor scales;                      // f32 [T_pad, H] when int8, else empty
};
bool query_is_quantised(const Problem& problem, const KernelRules& rules);
/// Whether attention reads other values than those of the query: quantised, or rotated for the
/// cache and rounded.
bool query_is_rounded(const Problem& problem, const KernelRules& rules);
StoredQuery store_query(const Problem& problem, const AttentionInputs& inputs,
                        const KernelRules& rules);

}  // namespace attnbench
