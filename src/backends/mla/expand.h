// Latents expanded to the keys and values of a rank's heads, and attention over them (semantics
// §8.3 compute-friendly form, §8.6).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backends/mla/work.h"

namespace attnbench {

/// Keys and values of rows of latents for the h heads of a rank, in MlaExpand::element().
struct Expanded {
  void* kv = nullptr;         // [rows, h, P + V]
  void* key = nullptr;        // [rows, h, P + R]; null where attention reads it in its two places,
                              // k_nope inside kv and the latents' k_pe
  void* value = nullptr;      // [rows, h, P + R] with padding of V, else inside kv
  void* projected = nullptr;  // kv before it is cast to e4m3, else kv
  const void* k_pe = nullptr;
  attn::i64 k_pe_stride = 0;
};

/// Rows to expand.
struct Latents {
  const void* kv_c = nullptr;  // activation type
  attn::i64 kv_c_stride = 0;
  const void* k_pe = nullptr;  // MlaExpand::element()
  attn::i64 k_pe_stride = 0;
  attn::i64 rows = 0;
};

/// A float32 result [T_prefill, h, V] with LSE [h, T_prefill].
struct Partial {
  float* output = nullptr;
  float* lse = nullptr;
};

class MlaExpand {
 public:
  /// Uploads kv_b_proj; with emulated FP8 prefill it adds the step that casts the query.
  explicit MlaExpand(MlaWork& work);

  /// Of query, keys and values: e4m3 with emulated FP8 prefill, else the activation type.
  attn::Element element() const { return element_; }
  bool is_fp8() const { return element_ != work_.element; }
  double flops(attn::i64 rows) const;

  /// k_pe of the new tokens [T_prefill, R] as element(), cast where that is e4m3.
  const void* add_new_rope(const void* k_pe);
  /// Room for what becomes of so many latents, of the longest chunk where one set serves several.
  Expanded make_expanded(const MlaRank& rank, const Latents& latents, const std::string& name);
  /// [k_nope | v] = kv_c @ kv_b_proj, k = [k_nope | k_pe] where there is a key, and V padded to the
  /// width of K.
  std::function<void()> expansion(const MlaRank& rank, const Latents& latents,
                                  const Expanded& to) const;

  /// The prefills' queries of a rank's heads over expanded keys of `key_lens` rows a request.
  attn::AttendParams attend_params(const MlaRank& rank, const Expanded& kv,
                                   const std::vector<std::int32_t>& key_lens, bool causal);
  /// Makes the attention write V columns a head: with padding through a wide buffer whose last
  /// columns are cut off. `key_lens` as in attend_params(). What a user's kernel leaves in 16 bits
  /// where `output_element` is f32 has to be widened by a step of its own behind it.
  std::function<void()> attend_into(const MlaRank& rank, attn::AttendParams attend,
                                    const std::vector<std::int32_t>& key_lens, void* output,
                                    attn::Element output_element, attn::i64 token_stride);
  /// That step, of all attentions since the last one; nothing where there is nothing to widen.
  void add_widening_step();

  Partial make_partial(const MlaRank& rank, const std::string& name);
  attn::MergeParams merge_params(const MlaRank& rank, const Partial& prefix,
                                 const Partial& suffix) const;

 private:
  attn::i64 tokens() const { return work_.plan.batch.num_prefill_tokens; }
  attn::i64 first_token() const { return work_.plan.batch.num_decode_tokens; }
  /// attend_params() but for lengths and masks.
  attn::AttendParams attend_operands(const MlaRank& rank, const Expanded& kv) const;
  /// Whether attention finds k_nope and k_pe where they lie, so that nobody copies them together.
  bool reads_key_apart(const MlaRank& rank, const Expanded& kv) const;
  attn::StaticQuantiseParams cast(const void* source, attn::i64 rows, attn::i64 columns,
                                  unsigned char* codes) const;

  MlaWork& work_;
  attn::Element element_;
  const void* kv_b_proj_ = nullptr;  // [N * (P + V), Lkv]
  const void* query_ = nullptr;      // [T_prefill, N, P + R]
  const int* query_start_loc_ = nullptr;
  const float* one_ = nullptr;
  std::vector<attn::CopyParams> widened_;  // still to be queued
};

/// Runs them in order.
std::function<void()> run_all(std::vector<std::function<void()>> all);

}  // namespace attnbench
