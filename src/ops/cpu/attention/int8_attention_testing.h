// Small int8 attention problems (semantics §11) for the tests of the CPU operations, with the
// answer computed naively from the definition.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "kernels/params.h"
#include "kernels/params_int8.h"

namespace attnbench::cpu {

struct Int8Case {
  std::vector<int> query_lens{1};
  std::vector<int> seq_lens{1};
  int level = 1;  // 2: V is bf16
  int num_heads = 2;
  int num_kv_heads = 1;
  int head_size = 32;
  Dtype output_dtype = Dtype::kF32;
  bool transposed_scales = false;
  float scale = 0.1f;
  float soft_cap = 0;
  int window_left = -1;
  int window_right = 0;
  attn::Alibi alibi = attn::Alibi::kNone;
  bool extreme = false;  // codes of -128 and 127 only
  std::uint64_t seed = 1;

  std::string describe() const;
};

/// Queries, new tokens to save, and a cache [P, NB, Hk, bs, D] in which every scale and value that
/// no position uses is NaN.
class Int8Setup {
 public:
  explicit Int8Setup(const Int8Case& the_case);
  Int8Setup(const Int8Setup&) = delete;
  Int8Setup& operator=(const Int8Setup&) = delete;

  attn::AttendParams params{};
  /// The batch's new tokens, already in the cache; its slots come from the block table.
  attn::Int8CacheWriteParams save{};
  std::vector<attn::i64> slot_mapping;
  Tensor output, lse;
  int num_tokens = 0;

  /// Makes the new tokens' cells of the cache poison again.
  void forget_new_tokens();
  /// s of §11.4 step 1, in float32 as written there.
  float raw_score(int request, int i, int head, int key) const;
  /// Empty when output and LSE agree with the naive answer, else where they do not.
  std::string difference(double tolerance) const;

 private:
  void build_batch();
  void build_queries();
  void build_cache();
  void build_params();
  std::int64_t slot(int request, int position) const;
  std::int64_t cell(int request, int position, int head) const;
  void put(int request, int position, int head, bool poison);
  double value_at(int request, int position, int head, int d) const;
  std::string row_difference(int request, int i, int head, double tolerance) const;

  Int8Case case_;
  int block_size_ = 16;
  int columns_ = 1;
  int num_blocks_ = 1;
  std::vector<int> query_start_loc_, block_table_;
  Tensor query_, key_, value_, cache_;
  std::vector<float> query_scale_, key_scale_, key_scale_cache_, channel_scale_, slopes_;
  Tensor all_keys_, all_values_;  // [sum of seq_lens, Hk, D], by position
  std::vector<float> all_key_scales_;
  std::vector<int> first_row_;  // of each request in all_keys_
};

}  // namespace attnbench::cpu
