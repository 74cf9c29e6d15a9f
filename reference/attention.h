// Float64 attention straight from the definitions of semantics §3 and §15: what every backend is
// judged by. It never splits, pages, merges or tiles over keys, so that it cannot share a mistake
// with the kernels, which do all of that. What it shares with them are number formats and the
// metadata functions that resolve masks; scripts/second_opinion.py checks those independently.
//
// Keys and values arrive as a flat list per request, already gathered from the cache and
// dequantised by whoever calls, so the reference knows nothing of pages and scales. Speed matters
// only as far as users wait for it: the work is spread over threads, and the result does not depend
// on how many.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "metadata/mask/attention_math.h"
#include "reference/row_selection.h"

namespace attnbench {

/// Keys [first, first + count) of the one request that there is stand in rows from `source` on.
struct MovedKeys {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t source = 0;
};

/// Borrowed tensors of one case. Values of any floating dtype are converted to f64 as they are.
struct ReferenceInputs {
  const Tensor* query = nullptr;  // [>=T, H, D]; f32 dequantised when the query is quantised
  const Tensor* key = nullptr;    // [S, Hk, D]; f32 dequantised when the cache is quantised
  const Tensor* value = nullptr;  // [S, Hk, Dv]
  std::span<const std::int32_t> query_start_loc;  // [B+1]
  std::span<const std::int32_t> seq_lens;         // [B]
  std::span<const std::int64_t> key_start_loc;    // [B+1]
  std::span<const float> sinks;                   // [H] or empty
  std::span<const float> alibi_slopes;            // [H] or empty
  /// Where the rows [T] and the keys [S] stand in their sequences, by which ALiBi goes where they
  /// are a part of them; empty = the row's place behind its keys, and that of the key.
  std::span<const std::int32_t> row_positions = {};
  std::span<const std::int32_t> key_positions = {};
  /// What e4m3 codes of query and key were multiplied by, where they are such codes; of the key one
  /// scale or [Hk], empty = 1. Only EmulationRule::e4m3_products reads them.
  float query_scale = 1;
  std::span<const float> key_scales = {};
  /// Keys and values that do not follow those before them; only with one request.
  std::span<const MovedKeys> moved_keys = {};
  /// The query has the chosen rows and no others.
  bool query_is_of_rows = false;
  /// Only these query heads, ascending; empty = all. Results have them and no others.
  std::span<const int> heads = {};
};

/// Results for the chosen rows, in their order.
struct ReferenceOutput {
  std::vector<std::int32_t> rows;  // token indices, ascending
  int num_heads = 0;
  int v_head_size = 0;
  std::vector<double> output;  // [rows, H, Dv]; 0 for a row that sees nothing
  std::vector<double> lse;     // [H, rows], natural log; -inf for a row that sees nothing
  /// Size n of a row r of a head, [rows, H]: max(||r||, kRowSpread * sqrt(sum_j p_j^2 ||v_j||^2)),
  /// over what is finite. The second is what a sum of independent values has on average; a row
  /// whose summands happen to cancel is measured by it. Empty in an emulation.
  std::vector<double> row_size = {};
  /// About what sums, products and exponentials in float32 cost the output of a row, as a norm over
  /// its elements, and its LSE, [rows, H]; grows with the scores. Empty in an emulation.
  std::vector<double> output_loss = {};
  std::vector<double> lse_loss = {};
};
inline constexpr double kRowSpread = 1;

struct ReferenceOptions {
  int num_threads = 0;                // 0 = all cores
  std::function<bool()> should_stop;  // polled between tiles; may be empty
};

/// Two-pass softmax over all visible keys of each row, sums in f64 (semantics §3.1, §3.5, §3.8).
/// NaN and infinity in visible inputs propagate; masked keys contribute exactly nothing (§0.6).
/// Returns nothing when should_stop said so.
std::optional<ReferenceOutput> reference_attention(const AttentionMath& math,
                                                   const ReferenceInputs& inputs,
                                                   std::span<const std::int32_t> rows,
                                                   const ReferenceOptions& options = {});

/// The same maths in storage precision (contract §4): O rounded to `storage`, P to `probability`,
/// scores and sums in f32. Its error against the reference is the yardstick for a kernel's error.
struct EmulationRule {
  Dtype storage = Dtype::kBF16;      // the output dtype
  Dtype probability = Dtype::kBF16;  // e4m3 where the kernel's P is
  /// Query and keys are e4m3 codes, and their products are summed as tensor cores do it
  /// (e4m3_products.h). Where values are no codes of the scales, in f32 all the same.
  bool e4m3_products = false;

  bool operator==(const EmulationRule&) const = default;
};
std::optional<ReferenceOutput> emulate_attention(const AttentionMath& math,
                                                 const ReferenceInputs& inputs,
                                                 const EmulationRule& rule,
                                                 std::span<const std::int32_t> rows,
                                                 const ReferenceOptions& options = {});

}  // namespace attnbench
