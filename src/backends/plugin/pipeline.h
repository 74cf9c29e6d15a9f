// A plugin's attention as a pipeline: our cache write, then its run(). Query, keys and values,
// metadata, output and LSE are described to the plugin once, in prepare(); run() gets only its
// state and the stream.
#pragma once

#include <optional>
#include <vector>

#include "backends/attention/int8_stage.h"
#include "backends/attention/pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/plugin/problem.h"
#include "backends/users_pipeline.h"

namespace attnbench {

class PluginPipeline final : public AttentionPipeline, public UsersPipeline {
 public:
  /// `plugin` must outlive it. Errors: those of PluginKernel::prepare().
  PluginPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                 const PluginTable& plugin, const PluginDevice& device);

  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;
  /// Query, keys and values, also those that every run writes into the cache.
  void negate_inputs() override;
  void negate_query() override;
  void negate_output(PipelineOutput& output) const override { negate(output.output); }
  Words words() const override {
    return {"the query negated", "query, key and value were negated"};
  }
  void finish() override { kernel_.finish(); }
  UsersPipeline* users() override { return this; }

 private:
  void describe_tensors();
  void describe_keys();
  std::vector<PluginKernel::Input> values() const;
  void watch_small_inputs();
  void negate_codes();
  void negate_int8();
  void add_int8_steps();
  PipelineOutput read_sample();
  std::string changed_input();

  const BackendInputs& inputs_;  // outlives the pipeline
  std::optional<Int8Stage> int8_;
  bool is_query_own_ = true;  // not negated
  PluginProblem problem_;
  PluginKernel kernel_;  // last: destroyed before everything that it may point to
};

}  // namespace attnbench
