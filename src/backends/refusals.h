// The reasons against a problem, collected in the order in which a backend gives them. Rows that
// several families of backends have stand here once, in the words of semantics §13.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "metadata/blocks.h"

namespace attnbench {

/// Whether a list of what a backend takes has the value.
template <typename T>
bool contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}
/// Whether some request has a range of tokens that see each other.
bool has_mm_prefix(const AttentionSpec& attention);
/// Whether the problem wants its prefix attended apart, whatever the heuristic says.
bool forces_cascade(const Problem& problem);

/// Each row adds its reason when the problem (and `applies`, what else decides for a family) says
/// so. Where families decide differently the row only has the words, and gets `refused`.
class Refusals {
 public:
  /// `problem` must outlive it. `known`: reasons that come before all others.
  explicit Refusals(const Problem& problem, const DeviceFacts& device = {},
                    std::vector<std::string> known = {})
      : problem_(problem), device_(device), list_(std::move(known)) {}

  void add_if(bool refused, std::string_view reason);
  void add(std::string_view reason) { add_if(true, reason); }
  bool none() const { return list_.empty(); }
  std::vector<std::string> take() { return std::move(list_); }

  // Formats. The value that was found follows, and what is taken where that can be said:
  // "head_size not supported (found 20; expected a multiple of 8, at most 256)".
  /// Head sizes in [least, most] that are multiples of `multiple`.
  void check_head_size(int multiple, int least, int most);
  void head_size(bool refused, std::string_view taken = "");
  void check_dtype(const std::vector<Dtype>& taken);
  void dtype(bool refused, std::string_view taken = "");
  void check_kv_cache_dtype(const std::vector<KvCacheDtype>& taken);
  void kv_cache_dtype(bool refused, std::string_view taken = "");
  void check_block_size(const std::vector<BlockSizeRule>& taken);
  void block_size(bool refused, std::string_view taken = "");
  void v_head_size(bool applies = true);
  void per_head_scales(bool applies = true);
  /// Of a cache with a scale a token and head, which are kept behind whole words of codes.
  void stored_head_size(bool applies = true);
  void quantised_kv_of_encoder(bool applies = true);
  void output_quant(bool refused);
  void fp8_query(bool applies = true);
  void e4m3_probability(bool applies = true);
  /// `applies`: P is never e4m3.
  void fast_fp8_sums(bool applies = true);

  // Kinds of attention and of devices
  void compute_capability(int least, int most = 1 << 30);
  void attention_type(bool refused);
  void mla();
  void sparse(bool applies = true);
  void mm_prefix(bool applies = true);
  void sinks();
  void non_causal(bool applies = true);
  void batch_invariance(bool applies = true);
  /// Of backends whose pipeline does not cut requests into chunks.
  void chunks();
  /// Of backends that make no use of strides between layers.
  void cross_layer_cache();

  // int8 attention
  void int8(bool applies = true);
  void int8_with_fp8_cache(bool has_fp8_cache);
  void int8_with_dcp();
  void int8_of_type(bool applies = true);

  // Features of a backend that reasons call `name`
  void cascade_by(std::string_view name);
  void ignored_by_encoder(std::string_view name, bool ignored, std::string_view feature);
  /// ALiBi, windows and soft caps, which no MLA backend has.
  void mla_scores();

  /// attention.num_splits, where the backend has no splits to choose, or `unused`: where this batch
  /// has none, `why`.
  void num_splits(bool has_none, bool unused = false, std::string_view why = {});

  // DCP
  void dcp();
  void dcp_without_lse(bool applies = true);
  /// Whether there are the ranks that dcp.transport names.
  void dcp_transport();
  void dcp_interleaved_speculation();

 private:
  const AttentionSpec& attention() const { return problem_.attention; }
  bool has_int8() const { return problem_.kv_cache.int8_level > 0; }
  bool has_dcp() const { return problem_.dcp.world_size > 1; }
  void add_format(bool refused, std::string_view what, std::string_view found,
                  std::string_view taken);

  const Problem& problem_;
  DeviceFacts device_;
  std::vector<std::string> list_;
};

}  // namespace attnbench
