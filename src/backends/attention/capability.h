// What a backend of decoder and encoder attention can do, as data: the columns of the support table
// (semantics §13.2); the reasons against a problem that follow from it; and what the native
// backends of this family have in common beside that.
//
// A new backend of the family fills in a Capability, derives from NativeBackend and adds
// description, cache layout, pipeline and explain(): about a hundred lines, most of them its own
// idea.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "metadata/batch.h"
#include "metadata/blocks.h"

namespace attnbench {

struct Capability {
  std::string name;
  KernelRules rules;
  bool is_ixformer = false;  // layout IX
  std::vector<Dtype> dtypes;
  std::vector<KvCacheDtype> kv_dtypes;
  int min_sm_fp8_kv = 0;
  int head_size_multiple = 1;
  int min_head_size = 1;
  int max_head_size = 1 << 30;
  std::vector<BlockSizeRule> block_sizes{{16, true}};
  int min_sm = 0;
  int min_sm_sinks = 0;
  int min_sm_per_head_scales = 0;  // -1 = never
  bool mm_prefix = false;
  bool alibi_sqrt = false;
  bool cascade = false;
  bool lse_for_dcp = false;
  bool non_causal_decoder = false;
  bool batch_invariant = true;
  bool fp8_query = false;
  bool static_fp8_output = false;
  bool num_splits = false;  // splits of keys that can be asked for
  bool encoder_soft_cap_and_alibi = false;
  /// Upstream's class, named where fused output quantisation is refused.
  std::string implementation = "FlashAttentionImpl";
};

/// Of FLASH_ATTN, which FLASH_ATTN_IX starts from; it is defined beside the backend, in
/// flash_attn.cpp.
Capability flash_attn_capability();

/// Whether a sink is +infinity: an output of 0 that no partial result with an LSE can stand for.
bool has_infinite_sink(const AttentionSpec& attention);

/// Every reason against the problem, in the order and words of §13.1; empty = supported.
std::vector<std::string> refusals_of(const Capability& capability, const Problem& problem,
                                     const DeviceFacts& device);

/// What the native decoder and encoder backends have in common: judged by a capability, run by
/// default for the types that have a query, a key and a value.
class NativeBackend : public Backend {
 public:
  explicit NativeBackend(Capability capability) : capability_(std::move(capability)) {}
  std::string_view name() const override { return capability_.name; }
  KernelRules kernel_rules() const override { return capability_.rules; }
  std::vector<BlockSizeRule> block_sizes() const override { return capability_.block_sizes; }
  bool is_default_for(AttentionType type) const override {
    return type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder ||
           is_encoder_type(type);
  }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return refusals_of(capability_, problem, device);
  }
  Dtype probability_dtype(const Problem& problem) const override {
    return probability_dtype_of(problem);
  }

 private:
  Capability capability_;
};

/// Lines of explain() about how a batch is divided into decodes and prefills (§1.3).
void add_batch_facts(const BatchSplit& batch, Facts& facts);

/// Lines of explain() about a backend's paged cache: layout, physical shape and element type. Other
/// families and users' backends use them too.
void add_cache_facts(const Problem& problem, CacheLayoutKind kind, const KernelRules& rules,
                     Facts& facts);

}  // namespace attnbench
