// A problem as plugins see it (attnbench_backend.h), and what no plugin can be given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/mla/capability.h"
#include "core/problem/problem.h"
#include "metadata/mask/attention_math.h"
#include "plugin/attnbench_backend.h"

namespace attnbench {

/// The device that the backends of a plugin are for.
struct PluginDevice {
  bool is_cuda = false;
  int index = 0;
  DeviceFacts facts;
  int num_threads = 0;  // 0 = all cores
};

/// What users' kernels compute: exactly what the definitions say.
inline constexpr KernelRules kPluginRules{};

/// Owns what get() points to.
class PluginProblem {
 public:
  /// By kPluginRules. `problem` has no reason of common_refusals() against it.
  PluginProblem(const Problem& problem, const PluginDevice& device);
  /// Of type mla: attention over the latents as a kernel of this capability gets it.
  PluginProblem(const Problem& problem, const MlaCapability& capability,
                const PluginDevice& device);
  /// Of type mla: a call over expanded heads, the requests from `first_request` on with
  /// `key_lens` keys.
  PluginProblem(const Problem& problem, int first_request,
                const std::vector<std::int32_t>& key_lens, bool causal, const PluginDevice& device);
  PluginProblem(const PluginProblem&) = delete;
  PluginProblem& operator=(const PluginProblem&) = delete;

  /// Makes it the attention of a vision encoder over e4m3 codes, with heads of `head_size` elements
  /// of which the last ones are zeros.
  void set_encoder_codes(int head_size);
  /// Makes it the attention of a rank of a decode-context group over its `context_lens` [B] keys.
  void set_rank(int rank, const std::vector<std::int32_t>& context_lens);

  const AttnbenchProblem* get() const { return &view_; }

 private:
  void set_common(const Problem& problem, const PluginDevice& device);
  void set_batch(const Problem& problem);
  void set_math(const AttentionMath& math);
  void set_cache(const Problem& problem, Dtype element);
  void set_latents(const Problem& problem, const MlaCapability& capability);
  void set_operation(const Problem& problem);

  AttnbenchProblem view_{};
  std::vector<std::int64_t> query_lens_;  // [B]
  std::vector<std::int64_t> seq_lens_;    // [B]
  std::string scenario_;
  std::string case_name_;
  std::string json_;
};

/// Whether a cache of the type has a code a byte, and a scale for each token and head beside them.
bool has_token_head_codes(KvCacheDtype dtype);

/// The bit of an element type; 0 for one that plugins are never given.
std::uint32_t plugin_dtype(Dtype dtype);

/// Why the interface has no way to hand the problem to any plugin, in the words of semantics §13
/// where there are some.
std::vector<std::string> common_refusals(const Problem& problem);

/// The same of single operations. Those that there are have a bit, and a name by it.
std::vector<std::string> operation_refusals(const Problem& problem);
std::string plugin_operation_name(std::uint32_t operation);

/// What `problem`, which is of `type`, needs and `table` does not declare.
std::vector<std::string> undeclared(const AttnbenchProblem& problem, AttentionType type,
                                    const AttnbenchBackend& table);

}  // namespace attnbench
