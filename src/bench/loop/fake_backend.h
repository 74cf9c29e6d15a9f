// A backend for the tests of this folder: right by construction, with faults on demand.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/users_pipeline.h"
#include "reference/attention.h"

namespace attnbench {

/// A decoder's prompt of four tokens with one head of 16, timed by few samples.
inline Problem small_problem() {
  Problem problem;
  problem.scenario = "suite";
  problem.case_name = "q4";
  problem.attention.num_heads = problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 16;
  problem.attention.scale = 0.25;
  problem.kv_cache.num_blocks = 4;
  problem.batch = {{4, 4}};
  problem.timing.samples = 2;
  problem.timing.l2 = L2Mode::kWarm;
  return problem;
}

class FakeBackend final : public Backend {
 public:
  std::string backend_name = "FLASH_ATTN";
  KernelRules rules{.quantises_query = true};  // FLASH_ATTN's
  std::vector<std::string> reasons;
  bool deterministic = true;
  std::optional<PluginInfo> library;  // makes it a user's
  /// Called by every run of a pipeline, numbered from 0, after the right result was computed.
  std::function<void(PipelineOutput&, int run)> fault = [](PipelineOutput&, int) {};
  /// The same on the values of the probe, whose runs are numbered apart.
  std::function<void(PipelineOutput&, int run)> probe_fault = [](PipelineOutput&, int) {};
  /// What a pipeline holds while it lives; called when it is prepared.
  std::function<std::shared_ptr<void>()> memory = [] { return nullptr; };
  mutable int prepared = 0;
  mutable int runs = 0;
  mutable int probe_runs = 0;

  std::string_view name() const override { return backend_name; }
  std::string_view description() const override { return "fake"; }
  KernelRules kernel_rules() const override { return rules; }
  bool is_default_for(AttentionType) const override { return true; }
  std::vector<std::string> refusals(const Problem&, const DeviceFacts&) const override {
    return reasons;
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return CacheLayoutKind::kFa; }
  bool is_deterministic(const Problem&) const override { return deterministic; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops&) const override {
    ++prepared;
    return std::make_unique<FakePipeline>(*this, problem, inputs);
  }
  Facts explain(const Problem&, const DeviceFacts&) const override { return {}; }
  const PluginInfo* plugin() const override { return library ? &*library : nullptr; }

 private:
  class FakePipeline final : public Pipeline, public UsersPipeline {
   public:
    FakePipeline(const FakeBackend& backend, const Problem& problem, const BackendInputs& inputs)
        : memory_(backend.memory()), backend_(backend), problem_(problem), inputs_(inputs) {
      steps_ = {{"write_cache", false, 64, 0, [this] { write_cache(); }},
                {"attend", true, 128, 256, [this] { attend(); }}};
    }
    const std::vector<Step>& steps() const override { return steps_; }
    void poison_outputs() override { output_ = {}; }
    PipelineOutput read_output(bool /*with_cache*/) override { return output_; }
    UsersPipeline* users() override { return backend_.library ? this : nullptr; }
    void negate_inputs() override { negates_inputs_ = !negates_inputs_; }
    void negate_query() override { negates_query_ = !negates_query_; }
    Words words() const override {
      return {"the query negated", "query, key and value were negated"};
    }
    void negate_output(PipelineOutput& output) const override { negate(output.output); }
    void finish() override {}

   private:
    /// A bit copy of the new rows through the slot_mapping of every rank.
    void write_cache() {
      const PagedCache& cache = *inputs_.cache;
      Tensor data = cache.data;
      const std::int64_t rows = cache.new_key.dim(0);
      const std::int64_t ranks = problem_.dcp.world_size;
      const std::size_t rank_bytes = data.size_bytes() / static_cast<std::size_t>(ranks);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::byte* base = data.bytes() + static_cast<std::size_t>(rank) * rank_bytes;
        const auto* slots = cache.slot_mapping.data<std::int64_t>() + rank * rows;
        for (std::int64_t n = 0; n < rows; ++n) {
          if (slots[n] >= 0) write_row(n, slots[n], base);
        }
      }
      cache_ = std::move(data);
    }

    void write_row(std::int64_t n, std::int64_t slot, std::byte* base) {
      const PagedCache& cache = *inputs_.cache;
      const KvLayout& layout = cache.layout;
      const std::int64_t block_size = problem_.kv_cache.block_size;
      const auto size = dtype_size(cache.data.dtype());
      for (std::int64_t head = 0; head < cache.new_key.dim(1); ++head) {
        const std::int64_t width = cache.new_key.dim(2);
        const std::int64_t cell = slot / block_size * layout.block_stride +
                                  slot % block_size * layout.slot_stride +
                                  head * layout.head_stride;
        const std::int64_t source = (n * cache.new_key.dim(1) + head) * width;
        const auto copy = [&](std::int64_t offset, const Tensor& rows) {
          std::memcpy(base + static_cast<std::size_t>(offset + cell) * size,
                      rows.bytes() + static_cast<std::size_t>(source) * size,
                      static_cast<std::size_t>(width) * size);
        };
        copy(layout.key_offset, cache.new_key);
        copy(layout.value_offset, cache.new_value);
      }
    }

    void attend() {
      const AttentionInputs& inputs = *inputs_.inputs;
      const Dtype dtype = problem_.attention.dtype;
      std::vector<std::int32_t> rows;
      for (std::int32_t t = 0; t < inputs.num_tokens(); ++t) rows.push_back(t);
      Tensor query = inputs.query;
      if (negates_query_) negate(query);
      const ReferenceInputs source{
          &query,          &inputs.key,          &inputs.value, inputs.query_start_loc,
          inputs.seq_lens, inputs.key_start_loc, inputs.sinks,  inputs.alibi_slopes};
      const auto exact = reference_attention(resolve_attention_math(problem_, backend_.rules),
                                             source, rows, {1, {}});
      PipelineOutput output;
      const AttentionSpec& a = problem_.attention;
      output.output = Tensor(dtype, {inputs.num_tokens(), a.num_heads, a.v_head_size});
      output.lse = Tensor(Dtype::kF32, {a.num_heads, inputs.num_tokens()});
      output.cache = cache_;
      for (std::int64_t i = 0; i < output.output.num_elements(); ++i) {
        output.output.set(i, static_cast<float>(exact->output[static_cast<std::size_t>(i)]));
      }
      for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
        output.lse->set(i, static_cast<float>(exact->lse[static_cast<std::size_t>(i)]));
      }
      if (negates_inputs_) negate(output.output);
      if (problem_.inputs.distribution == Distribution::kProbe) {
        backend_.probe_fault(output, backend_.probe_runs++);
      } else {
        backend_.fault(output, backend_.runs++);
      }
      output_ = std::move(output);
    }

    static void negate(Tensor& tensor) {
      for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, -tensor.at(i));
    }

    std::shared_ptr<void> memory_;
    bool negates_inputs_ = false;
    bool negates_query_ = false;
    const FakeBackend& backend_;
    const Problem& problem_;
    const BackendInputs& inputs_;
    std::vector<Step> steps_;
    Tensor cache_;
    PipelineOutput output_;
  };
};

}  // namespace attnbench
