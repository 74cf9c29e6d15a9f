// A problem passes three sieves: what the interface has no words for (plugin/problem.h), what the
// plugin does not declare in its table, and what its own supports() says. Only then is it prepared.
#include "backends/plugin/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <sstream>
#include <utility>

#include "backends/attention/capability.h"
#include "backends/op/facts.h"
#include "backends/plugin/dcp_pipeline.h"
#include "backends/plugin/mla_pipeline.h"
#include "backends/plugin/mla_prefill_pipeline.h"
#include "backends/plugin/mm_pipeline.h"
#include "backends/plugin/op_pipeline.h"
#include "backends/plugin/pipeline.h"
#include "core/error.h"
#include "inputs/cache/kv_scales.h"
#include "plugin/plugin_description.h"
#include "plugin/python_plugin.h"

namespace attnbench {
namespace {

class PluginBackend final : public Backend {
 public:
  /// `library`: where the functions of `plugin` are, which then is data only; null = in it.
  PluginBackend(PluginInfo info, const PluginTable& plugin, const PluginDevice& device,
                std::shared_ptr<LazyPluginLibrary> library = nullptr, std::size_t index = 0)
      : plugin_(plugin),
        library_(std::move(library)),
        index_(index),
        device_(device),
        dense_mla_(plugin_mla_capability(plugin.table, false)),
        sparse_mla_(plugin_mla_capability(plugin.table, true)),
        prefill_mla_(plugin_prefill_capability(plugin.table)),
        info_(std::move(info)),
        description_(describe(plugin.table.description, info_)) {
    plugin_.on_cuda = device.is_cuda;
  }

  std::string_view name() const override { return plugin_.table.name; }
  std::string_view description() const override { return description_; }
  KernelRules kernel_rules() const override { return kPluginRules; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType) const override { return false; }
  const PluginInfo* plugin() const override { return &info_; }
  void load() const override { loaded(); }

  std::vector<std::string> refusals(const Problem& problem, const DeviceFacts&) const override {
    if (problem.attention.type == AttentionType::kMla) return mla_reasons(problem);
    std::vector<std::string> reasons = common_refusals(problem);
    if (reasons.empty()) reasons = own_limits(problem);
    if (!reasons.empty()) return reasons;
    const bool has_ranks =
        problem.dcp.world_size > 1 && problem.attention.type != AttentionType::kOp;
    if (has_ranks) return reasons_of_calls(dcp_calls(problem, device_), problem);
    if (is_fp8_encoder(problem)) return own_reasons(*mm_fp8_call(problem, device_), problem);
    return own_reasons(PluginProblem(problem, device_), problem);
  }

  const MlaCapability* mla_capability(const Problem& problem) const override {
    if (problem.attention.type != AttentionType::kMla) return nullptr;
    if (takes_mla_prefills()) return &prefill_mla_;
    return problem.mla.sparse_topk ? &sparse_mla_ : &dense_mla_;
  }

  std::optional<CacheLayoutKind> cache_layout() const override {
    switch (plugin_.table.kv) {
      case ATTNBENCH_KV_PAGED:
        return CacheLayoutKind::kFa;
      case ATTNBENCH_KV_PAGED_INTERLEAVED:
        return CacheLayoutKind::kTr;
      default:
        return std::nullopt;
    }
  }

  /// int8 attention has pages of its own (§11.1), for kernels that want K and V apart.
  std::optional<CacheLayoutKind> cache_layout_for(const Problem& problem) const override {
    const bool is_int8 =
        problem.kv_cache.int8_level > 0 && problem.attention.type == AttentionType::kDecoder;
    if (is_int8 && cache_layout() == CacheLayoutKind::kFa) return CacheLayoutKind::kIx;
    return cache_layout();
  }

  bool is_deterministic(const Problem&) const override {
    return plugin_.table.nondeterministic == 0;
  }
  /// By the problem: a plugin that rounds P further than the problem says has no wider limits.
  Dtype probability_dtype(const Problem& problem) const override {
    return probability_dtype_of(problem);
  }

  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    // Why again: one request of a batch may be a problem that the plugin does not take.
    const std::vector<std::string> reasons = refusals(problem, device_.facts);
    if (!reasons.empty()) fail(ErrorKind::kUnsupported, "{}", fmt::join(reasons, "; "));
    if (problem.attention.type == AttentionType::kMla && takes_mla_prefills()) {
      return std::make_unique<PluginMlaPrefillPipeline>(prefill_mla_, problem, inputs, ops,
                                                        loaded(), device_);
    }
    if (const MlaCapability* mla = mla_capability(problem)) {
      return std::make_unique<PluginMlaPipeline>(*mla, problem, inputs, ops, loaded(), device_);
    }
    if (problem.attention.type == AttentionType::kOp) {
      if (inputs.op == nullptr) fail(ErrorKind::kInternal, "{}: no operands were given", name());
      return std::make_unique<PluginOpPipeline>(problem, *inputs.op, ops, loaded(), device_);
    }
    if (is_fp8_encoder(problem)) {
      return std::make_unique<PluginMmPipeline>(problem, inputs, ops, loaded(), device_);
    }
    if (problem.dcp.world_size > 1) {
      return std::make_unique<PluginDcpPipeline>(problem, inputs, ops, loaded(), device_);
    }
    return std::make_unique<PluginPipeline>(problem, inputs, ops, loaded(), device_);
  }

  bool chooses_kernels() const override { return false; }
  Facts explain(const Problem& problem, const DeviceFacts&) const override {
    Facts facts{{"library", info_.library},
                {"version", info_.version},
                {"sha256", info_.sha256},
                {"lse", lse_words()}};
    if (const MlaCapability* mla = mla_capability(problem)) {
      facts.emplace_back("form", takes_mla_prefills()
                                     ? "expanded heads, prefills; decodes are those of MLA"
                                     : "latent, all requests");
      const bool is_fp8 = plan_mla(*mla, problem).quantised_query;
      facts.emplace_back("query", is_fp8 ? "fp8_e4m3" : "as given");
    } else if (problem.attention.type == AttentionType::kOp) {
      facts.emplace_back("operation", to_string(*problem.op.name));
      add_op_facts(problem, facts);
    } else if (const auto layout = cache_layout_for(problem);
               layout && !has_direct_kv(problem.attention.type)) {
      add_cache_facts(problem, *layout, kPluginRules, facts);
    } else {
      facts.emplace_back("keys", "ragged");
    }
    if (problem.dcp.world_size > 1 && problem.attention.type != AttentionType::kOp) {
      facts.emplace_back("form", "context of every rank; exchange, new keys and merge are ours");
    }
    return facts;
  }

 private:
  /// The table whose functions are the user's code: from here on it is in this process.
  const PluginTable& loaded() const {
    if (!library_) return plugin_;
    if (!loaded_) {
      loaded_ = library_->table(index_);
      loaded_->on_cuda = plugin_.on_cuda;
    }
    return *loaded_;
  }

  static std::string describe(const char* own_words, const PluginInfo& info) {
    const std::string of = fmt::format("plugin {}, version {}", info.library, info.version);
    return own_words == nullptr ? of : fmt::format("{} ({})", own_words, of);
  }

  /// What the plugin does not declare, and what it says itself.
  std::vector<std::string> own_reasons(const PluginProblem& view, const Problem& problem) const {
    std::vector<std::string> reasons =
        undeclared(*view.get(), problem.attention.type, plugin_.table);
    for (std::string& reason : asked(*view.get())) reasons.push_back(std::move(reason));
    return reasons;
  }

  static bool is_fp8_encoder(const Problem& problem) {
    return problem.attention.type == AttentionType::kMmEncoder &&
           problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
  }

  bool takes_mla_prefills() const {
    return (plugin_.table.attention_types & ATTNBENCH_MLA_PREFILL) != 0;
  }

  std::vector<std::string> prefill_reasons(const Problem& problem) const {
    if (problem.dcp.world_size > 1) return {"DCP not supported"};
    if (problem.attention.dtype == Dtype::kF32)
      return {"float32 prefills are not handed to plugins"};
    std::vector<std::string> reasons = mla_refusals(prefill_mla_, problem, device_.facts);
    if (!reasons.empty()) return reasons;
    if (plan_mla(prefill_mla_, problem).fp8_prefill) return {"fp8 prefill"};
    const auto calls = mla_prefill_calls(prefill_mla_, problem, device_);
    if (calls.empty()) return {"no prefills in the batch"};
    return reasons_of_calls(calls, problem);
  }

  /// Each reason against any of the calls, once.
  std::vector<std::string> reasons_of_calls(
      const std::vector<std::unique_ptr<PluginProblem>>& calls, const Problem& problem) const {
    std::vector<std::string> reasons;
    for (const auto& call : calls) {
      for (std::string& reason : own_reasons(*call, problem)) {
        const bool is_known = std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
        if (!is_known) reasons.push_back(std::move(reason));
      }
    }
    return reasons;
  }

  std::vector<std::string> mla_reasons(const Problem& problem) const {
    if (takes_mla_prefills()) return prefill_reasons(problem);
    if ((plugin_.table.attention_types & ATTNBENCH_MLA) == 0) {
      return {"attention type mla not supported"};
    }
    if (problem.dcp.world_size > 1) return {"DCP not supported"};
    if (problem.attention.dtype == Dtype::kF32) {
      return {"float32 latents are not handed to plugins"};
    }
    const MlaCapability& capability = *mla_capability(problem);
    const std::vector<std::string> reasons = mla_refusals(capability, problem, device_.facts);
    if (!reasons.empty()) return reasons;
    return own_reasons(PluginProblem(problem, capability, device_), problem);
  }

  /// What follows from the form that it wants its keys and LSE in.
  std::vector<std::string> own_limits(const Problem& problem) const {
    if (problem.attention.type == AttentionType::kOp) return limits_of_layout(problem);
    std::vector<std::string> reasons;
    const bool has_cache = !has_direct_kv(problem.attention.type);
    const bool is_paged = cache_layout().has_value();
    if (has_cache && !is_paged && calculates_kv_scales(problem)) {
      reasons.emplace_back("scales calculated in the step, with ragged keys");
    }
    if (problem.kv_cache.int8_level > 0 && cache_layout() != CacheLayoutKind::kFa) {
      reasons.emplace_back("int8 attention needs kv PAGED");
    }
    if (problem.dcp.world_size > 1) {
      const AttnbenchBackend& table = plugin_.table;
      const bool writes = table.lse == ATTNBENCH_LSE_NATURAL &&
                          table.lse_axes == ATTNBENCH_LSE_HT &&
                          table.empty_rows == ATTNBENCH_EMPTY_MINUS_INF;
      if (!writes)
        reasons.emplace_back("the ranks of DCP need an LSE NATURAL, HT, EMPTY_MINUS_INF");
      if (!is_paged) reasons.emplace_back("the ranks of DCP need kv PAGED or PAGED_INTERLEAVED");
    }
    const bool has_token_scales = has_cache && has_token_head_codes(problem.kv_cache.dtype);
    if (has_token_scales && cache_layout() != CacheLayoutKind::kTr) {
      reasons.emplace_back("scales of each token and head need kv PAGED_INTERLEAVED");
    }
    if (has_cache && is_paged && problem.attention.v_head_size != problem.attention.head_size) {
      reasons.emplace_back("v_head_size not supported");
    }
    if (lse_convention(plugin_.table).empty_is_plus_inf && has_infinite_sink(problem.attention)) {
      reasons.emplace_back("a sink of +inf with an LSE of +inf for rows that see no key");
    }
    return reasons;
  }

  /// A single operation has its cache in the layout that the scenario names.
  std::vector<std::string> limits_of_layout(const Problem& problem) const {
    const bool writes = (plugin_.table.operations & ATTNBENCH_OP_RESHAPE_AND_CACHE) != 0;
    if (problem.op.name != OpKind::kReshapeAndCache || !writes) return {};
    // Latents have one layout, and int8 caches come as a whole.
    if (problem.op.mla || problem.kv_cache.int8_level > 0) return {};
    const OpCacheLayout layout = problem.op.cache_layout;
    const bool fits = layout == OpCacheLayout::kTr
                          ? cache_layout() == CacheLayoutKind::kTr
                          : layout == OpCacheLayout::kFa && cache_layout() == CacheLayoutKind::kFa;
    if (fits) return {};
    if (!cache_layout()) return {"a cache write needs kv PAGED or PAGED_INTERLEAVED, not RAGGED"};
    return {fmt::format("cache layout {} not supported", to_string(layout))};
  }

  /// The lines of what supports() says. Errors: BackendFailure when it throws.
  std::vector<std::string> asked(const AttnbenchProblem& problem) const {
    if (plugin_.table.supports == nullptr) return {};
    const PluginTable& plugin = loaded();
    const char* words = nullptr;
    const StdoutToStderr redirected;
    const auto complaint = complaint_of(plugin, [&]() -> const char* {
      words = plugin.table.supports(plugin.self, &problem);
      return nullptr;
    });
    if (complaint) {
      throw BackendFailure(fmt::format("{}: supports(): {}", plugin_.table.name, *complaint));
    }
    if (words == nullptr) return {};
    std::vector<std::string> reasons;
    std::istringstream lines(words);
    for (std::string line; std::getline(lines, line);) {
      if (line.find_first_not_of(" \t\r") != std::string::npos) reasons.push_back(std::move(line));
    }
    if (reasons.empty()) reasons.emplace_back("refused without a word");
    return reasons;
  }

  std::string lse_words() const {
    if (plugin_.table.lse == ATTNBENCH_LSE_NONE) return "none";
    const LseConvention convention = lse_convention(plugin_.table);
    return fmt::format("{}, {} for rows that see no key",
                       convention.base_two ? "base 2" : "natural",
                       convention.empty_is_plus_inf ? "+inf" : "-inf");
  }

  PluginTable plugin_;  // what it declares
  std::shared_ptr<LazyPluginLibrary> library_;
  std::size_t index_;  // in the library
  mutable std::optional<PluginTable> loaded_;
  PluginDevice device_;
  MlaCapability dense_mla_;
  MlaCapability sparse_mla_;
  MlaCapability prefill_mla_;
  PluginInfo info_;
  std::string description_;
};

}  // namespace

std::vector<std::unique_ptr<Backend>> load_plugin(const std::string& path,
                                                  const PluginDevice& device, double limit_s) {
  const auto library = std::make_shared<LazyPluginLibrary>(describe_plugin(path, limit_s));
  const PluginDescription& described = library->description();
  std::vector<std::unique_ptr<Backend>> backends;
  for (const PluginTable& table : described.tables) {
    PluginInfo info{described.path, table.table.version, described.sha256};
    backends.push_back(
        std::make_unique<PluginBackend>(std::move(info), table, device, library, backends.size()));
  }
  return backends;
}

std::vector<std::unique_ptr<Backend>> load_python(const std::string& package_dir,
                                                  const std::vector<std::string>& adapters,
                                                  const PluginDevice& device) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const auto& [info, table] : load_python_plugins(package_dir, adapters)) {
    backends.push_back(std::make_unique<PluginBackend>(info, table, device));
  }
  return backends;
}

}  // namespace attnbench
