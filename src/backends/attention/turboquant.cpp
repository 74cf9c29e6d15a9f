// TURBOQUANT: vLLM's attention over slots that a key and its value share in few bits (semantics
// §5.8), with upstream's limits. Attention reads the cache for every key, those of the step
// included, as upstream does in decodes and in continuations of at most 128 tokens.
#include <fmt/format.h>

#include <algorithm>

#include "backends/attention/capability.h"
#include "backends/attention/pipeline.h"
#include "backends/backend_list.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

/// Upstream's tq_max_kv_splits_for_cuda_graph: a decode has this many parts, whatever its length,
/// so that a captured graph serves every batch.
constexpr int kDecodeSplits = 32;
constexpr int kLeastE4m3Sm = 89;

Capability turboquant_capability() {
  Capability c;
  c.name = "TURBOQUANT";
  c.dtypes = {Dtype::kF16, Dtype::kBF16};
  c.kv_dtypes = {kTurboK8V4, kTurbo4Bit, kTurboK3V4, kTurbo3Bit};
  c.block_sizes = {{16, false}, {32, false}, {64, false}, {128, false}};
  c.min_sm_per_head_scales = -1;
  c.batch_invariant = false;  // a decode is cut into splits only where all requests are decodes
  c.implementation = "TurboQuantAttentionImpl";
  return c;
}

/// Decodes are cut into parts where all requests are decodes of one token; speculative tokens are
/// none to upstream. It cuts those of mixed steps and short continuations too (semantics §13.2).
bool is_pure_decode(const Problem& problem) {
  return std::ranges::all_of(problem.batch,
                             [](const Request& request) { return request.query_len <= 1; });
}

class TurboquantPipeline : public AttentionPipeline {
 public:
  TurboquantPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                     const KernelRules& rules)
      : AttentionPipeline(problem, inputs, ops, rules) {
    add_write_step();
    if (is_pure_decode(problem)) {
      add_split_steps();
    } else {
      add_attend_step("attend", [this] { this->ops().attend(params()); });
    }
  }

 private:
  void add_split_steps() {
    attn::SplitParams split{};
    split.num_splits = kDecodeSplits;
    split.num_tokens = num_tokens();
    const std::int64_t rows = std::int64_t{split.num_splits} * num_tokens() * params().num_heads;
    split.partial_output =
        memory().workspace_of<float>(rows * params().v_head_size, "partial output");
    split.partial_lse = memory().workspace_of<float>(rows, "partial lse");
    add_attend_step("attend", [this, split] { ops().attend_splits(params(), split); });
    add_step(counted_step("combine", [this, split] { ops().combine_splits(params(), split); }));
  }
};

class Turboquant : public NativeBackend {
 public:
  Turboquant() : NativeBackend(turboquant_capability()) {}
  std::string_view description() const override {
    return "vLLM TurboQuant: slots of keys in e4m3 or rotated in 3 or 4 bits and values in 3 or 4 "
           "bits";
  }
  /// Beside the caches that it is for there is none that it reads.
  bool is_default_for(AttentionType) const override { return false; }
  bool runs_by_default(const Problem& problem) const override {
    return problem.attention.type == AttentionType::kDecoder &&
           shares_slots(problem.kv_cache.dtype);
  }
  bool states_rules() const override { return false; }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kTr; }
  /// Upstream's class takes sliding_window, alibi_slopes and logits_soft_cap and leaves them alone:
  /// a result would be that of another scenario.
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    std::vector<std::string> reasons = NativeBackend::refusals(problem, device);
    const AttentionSpec& a = problem.attention;
    const auto add_if = [&](bool applies, const char* what) {
      if (applies) reasons.push_back(fmt::format("TURBOQUANT ignores {}", what));
    };
    add_if(a.alibi != AlibiKind::kNone, "ALiBi");
    add_if(a.logits_soft_cap > 0, "softcap");
    add_if(a.sliding_window.has_value() || a.chunk_size.has_value(), "windows");
    if (a.sinks != SinksKind::kNone) reasons.emplace_back("attention sinks not supported");
    // There upstream stores the keys in another type of 8 bits, which no device here reads.
    const auto& slot = kv_format(problem.kv_cache.dtype).slot;
    if (slot && slot->key_bits == 8 && device.sm < kLeastE4m3Sm) {
      reasons.push_back(fmt::format("{} has keys in fp8e4b15 below compute capability 8.9",
                                    to_string(problem.kv_cache.dtype)));
    }
    if (a.type != AttentionType::kDecoder && a.type != AttentionType::kMla &&
        a.type != AttentionType::kMmEncoder && a.type != AttentionType::kOp) {
      reasons.push_back(fmt::format("attention type {} not supported", to_string(a.type)));
    }
    return reasons;
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return std::make_unique<TurboquantPipeline>(problem, inputs, ops, kernel_rules());
  }
  Facts explain(const Problem& problem, const DeviceFacts&) const override {
    const KvCacheDtype dtype = problem.kv_cache.dtype;
    const int head_size = problem.attention.head_size;
    Facts facts{
        {"path", is_pure_decode(problem) ? fmt::format("{} splits", kDecodeSplits)
                                         : std::string("whole requests")},
        {"slot",
         fmt::format("{} bytes of key, {} of value, {} in all", slot_key_bytes(dtype, head_size),
                     slot_value_bytes(dtype, head_size), 2 * stored_width(dtype, head_size))}};
    add_cache_facts(problem, CacheLayoutKind::kTr, kernel_rules(), facts);
    return facts;
  }
};

}  // namespace

const Backend& turboquant_backend() {
  static const Turboquant backend;
  return backend;
}

}  // namespace attnbench
