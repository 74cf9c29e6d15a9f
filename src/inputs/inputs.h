// Problem + seed -> the tensors of a case: query, key, value, paged caches, sinks, slopes. The same
// bytes on every machine, and poison (NaN or garbage) in every byte that must be ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "metadata/kv_layout.h"
#include "metadata/mask/kernel_rules.h"

namespace attnbench {

/// What all backends of a case share. T = new tokens, T_pad >= T, S = sum of seq_lens.
struct AttentionInputs {
  Tensor query;                               // [T_pad, H, D] in attention.dtype; rows >= T are NaN
  Tensor key;                                 // [S, Hk, D] in attention.dtype, position order,
  Tensor value;                               // [S, Hk, Dv] requests concatenated; never poisoned
  std::vector<std::int32_t> query_start_loc;  // [B+1]
  std::vector<std::int32_t> seq_lens;         // [B]
  std::vector<std::int64_t> key_start_loc;    // [B+1] exclusive sum of seq_lens
  std::vector<float> sinks;                   // [H] or empty
  std::vector<float> alibi_slopes;            // [H] or empty
  std::vector<float> value_channel_scale;     // [Hk, Dv] of int8 level 1 (§11.1), else empty
  std::vector<std::string> notices;           // e.g. a tensor of inputs.file was rounded
  bool shapes_only = false;                   // InputsSpec::shapes_only

  std::int64_t num_tokens() const { return query_start_loc.back(); }
};

/// Seeded draw, or inputs.file, for decoder, encoder, encoder_only, encoder_decoder and mm_encoder.
/// Every drawn element is a function of seed, tensor and index alone, rounded to attention.dtype:
///   normal   N(0, std^2)
///   uniform  in [-std * sqrt(3), std * sqrt(3)], so that the standard deviation is std
///   outlier  normal, but about 1 % (at least one) of the channels (h, d) of query, key and value
///            are 20 times as large, and about 0.1 % of the tokens 5 times
/// Keys and values below cascade.common_prefix_len are the same in every request. A tensor `sinks`
/// of the file turns sinks on (sinks is then not empty), unless the scenario gives numbers.
/// Errors: E-IO, E-FORMAT, E-SHAPE (tensors that disagree with the scenario), E-DTYPE, E-VALUE,
/// E-CAPACITY (inputs, stored K/V and cache exceed this machine's memory).
AttentionInputs make_inputs(const Problem& problem);

/// A tensor `sinks` of inputs.file becomes the problem's numbers unless the scenario gives numbers
/// itself, so that refusals, pipelines and results all see the same sinks. Nothing happens without
/// a file. Errors: as make_inputs.
void adopt_file_sinks(Problem& problem);

/// Which positions of request b are new in this step and written by the pipeline; the others are
/// in the cache before. decoder: [context_len, seq_len). encoder_decoder: [0, seq_len) for requests
/// with query_len > 1, none for the others (their encoder K/V were written in an earlier step).
struct PositionRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
std::vector<PositionRange> new_key_ranges(const Problem& problem);

/// K and V as the cache holds them, computed straight from semantics §5.1 and §5.5 in f32: what a
/// correct cache write stores, and the values that the reference reads (§15.1).
struct StoredKv {
  Tensor key_codes;          // [S, Hk, D] in the cache's element type
  Tensor value_codes;        // [S, Hk, Dv]
  Tensor key_scales;         // f32 [S, Hk], per-token-head and int8 levels only, else empty
  Tensor value_scales;       // f32 [S, Hk], per-token-head only
  Tensor key_dequantized;    // f32 [S, Hk, D]; this and the next are empty where the cache only
  Tensor value_dequantized;  // f32 [S, Hk, Dv]   copies bits: the reference reads key and value
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

/// Errors: E-DTYPE when an unquantised cache has another element type than the keys; E-SHAPE and
/// E-VALUE for scales of a wrong number, not finite, or <= 0.
StoredKv store_kv(const AttentionInputs& inputs, const StoreRule& rule);

/// The query as the kernel reads it. Where it is e4m3: codes rn_e4m3(q * (1/q_scale)) and
/// q_dequantized = f32(code) * q_scale; int8 levels: codes and a scale per token and head (§11.2
/// mode 2); everything else: the query itself.
struct StoredQuery {
  Tensor query;                       // [T_pad, H, D], e4m3, int8 or attention.dtype
  std::optional<Tensor> dequantized;  // f32 [T_pad, H, D] when quantised
  float scale = 1.0f;                 // q_scale when e4m3
  Tensor scales;                      // f32 [T_pad, H] when int8, else empty
};
bool query_is_quantised(const Problem& problem, const KernelRules& rules);
StoredQuery store_query(const Problem& problem, const AttentionInputs& inputs,
                        const KernelRules& rules);

/// A paged cache before the step: context positions written, every other byte poison (NaN codes for
/// float formats, 127 and -128 for int8), but per-token-head scales never written are 1.0 (§5.5).
/// Under DCP of W > 1 ranks each rank has a cache of its own and the positions of §7.1 in it: data
/// is [W, ...] and slot_mapping [W, N], slots of other ranks' positions -1; the table is one.
struct PagedCache {
  KvLayout layout;      // of one rank
  Tensor data;          // element type of the cache, physical shape of the layout
  Tensor block_table;   // i32 [B, MB]; entries past cdiv(seq_len, block_size) are garbage or -1
  Tensor slot_mapping;  // i64 [N_new + padding]: the new keys in request order, then -1 rows
  Tensor new_key;       // [N_new + padding, Hk, D] rows to write; padding rows are NaN
  Tensor new_value;     // [N_new + padding, Hk, Dv]
  /// f32 [NB, Hk, bs], scales of the int8 keys, NaN in slots not written; int8 levels only (§11.1).
  Tensor key_scale_cache;
};

/// Physical pages are a seeded permutation when kv_cache.shuffle_blocks; requests share the pages
/// of cascade.common_prefix_len (and make_inputs gives them the same keys there) that lie whole in
/// their context. kIx is head-major whatever kv_cache.layout says. Errors: E-CONFIG when
/// kv_cache.num_blocks is too small, E-SHAPE when v_head_size differs from head_size.
PagedCache make_paged_cache(const Problem& problem, const AttentionInputs& inputs,
                            const StoredKv& stored, CacheLayoutKind kind);

/// Compares a cache after the step with what a correct write leaves: every live position must hold
/// `stored`'s bytes (and scales), every other byte must be as `before`. Returns the empty string,
/// or a sentence naming the first difference (rank, request, position, K or V, head, element). At
/// int8 levels `key_scales_after` is the cache of key scales after the step.
std::string check_cache(const Problem& problem, const StoredKv& stored, const PagedCache& before,
                        const Tensor& after, const Tensor* key_scales_after = nullptr);

}  // namespace attnbench
