// Small random attention problems for the tests of the CPU operations, with the answer computed
// naively in double, one (row, head) at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "kernels/params.h"

namespace attnbench::cpu {

struct AttentionCase {
  std::vector<int> query_lens{1};
  std::vector<int> seq_lens{1};
  int num_heads = 2;
  int num_kv_heads = 1;
  int head_size = 32;
  int v_head_size = 32;
  Dtype query_dtype = Dtype::kF32;
  Dtype kv_dtype = Dtype::kF32;
  Dtype output_dtype = Dtype::kF32;
  bool paged = true;
  bool scaled = false;          // k_scale and v_scale per head
  bool per_token_head = false;  // scale arrays [blocks, block_size, Hk]
  bool round_dequantized = false;
  float scale = 0.2f;
  float soft_cap = 0;
  int window_left = -1;
  int window_right = 0;
  attn::Alibi alibi = attn::Alibi::kNone;
  bool sinks = false;
  std::vector<std::vector<std::array<int, 2>>> mm_ranges;  // per request
  bool nonfinite_future = false;  // NaN and infinity in V of the last key of each request
  float magnitude = 1.0f;         // of the queries
  std::uint64_t seed = 1;

  std::string describe() const;
};

/// Tensors of a case with poison wherever nothing may be read, and params pointing into them.
class AttentionSetup {
 public:
  explicit AttentionSetup(const AttentionCase& the_case);
  AttentionSetup(const AttentionSetup&) = delete;
  AttentionSetup& operator=(const AttentionSetup&) = delete;

  attn::AttendParams params{};
  Tensor query, cache, output, lse;
  std::vector<int> query_start_loc, seq_lens, block_table, mm_ranges;
  std::vector<attn::i64> kv_start_loc;
  std::vector<float> slopes, sinks, k_scale, v_scale, token_scales;
  int num_tokens = 0;

  /// The naive answer: output [T, H, Dv] and LSE [H, T].
  std::vector<double> expected_output;
  std::vector<double> expected_lse;

  /// Empty when output and LSE agree within `tolerance` (absolute and relative), else where they
  /// do not.
  std::string difference(double tolerance) const;

 private:
  void build_batch();
  void build_tensors();
  void build_params();
  /// Keys or values of a request as they are read, [Sk, Hk, width]. Once for all of its rows: to
  /// read them took most of the time of these tests.
  std::vector<double> elements(int request, bool value) const;
  std::int64_t cell(int request, int position, int head, bool value) const;
  double stored(std::int64_t element, std::int64_t scale_index, float head_scale) const;
  std::int64_t scale_index(int request, int position, int head, bool value) const;
  void solve();
  void solve_row(int request, int i, int head, const std::vector<double>& keys,
                 const std::vector<double>& values);

  AttentionCase case_;
  int block_size_ = 16;
  int num_blocks_ = 0;
  int columns_ = 0;
  int width_ = 0;
};

}  // namespace attnbench::cpu
