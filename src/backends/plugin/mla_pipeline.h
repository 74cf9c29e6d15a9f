// A plugin's attention over the latents of MLA: between our cache write, query projection and value
// projection.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backends/mla/pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/plugin/problem.h"
#include "backends/users_pipeline.h"

namespace attnbench {

/// How the kernels of a plugin take part in MLA cases, with lists of keys (`sparse`) or without.
MlaCapability plugin_mla_capability(const AttnbenchBackend& table, bool sparse);

/// How the prefills of a plugin take part in MLA cases: decodes and everything around the attention
/// are those of MLA.
MlaCapability plugin_prefill_capability(const AttnbenchBackend& table);

/// What UsersPipeline says of MLA: the query of all steps changes its sign,
void flip_mla_query(MlaWork& work);
/// new latents and those of the cache do,
void flip_mla_latents(MlaWork& work);
/// and an output becomes that of the other sign. Codes of a quantised one have a sign each.
void negate_mla_output(const Problem& problem, PipelineOutput& output);

class PluginMlaPipeline final : public MlaPipeline, public UsersPipeline {
 public:
  /// `capability` and `plugin` must outlive it. Errors: those of MlaPipeline and of
  /// PluginKernel::prepare().
  PluginMlaPipeline(const MlaCapability& capability, const Problem& problem,
                    const BackendInputs& inputs, Ops& ops, const PluginTable& plugin,
                    const PluginDevice& device);

  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;
  /// Query and latents, also those that every run writes into the cache.
  void negate_inputs() override;
  /// And exchanges the lists for others: what a kernel makes of them in its first run is wrong in
  /// the next one.
  void negate_query() override;
  void negate_output(PipelineOutput& output) const override;
  Words words() const override;
  void finish() override { kernel_.finish(); }
  UsersPipeline* users() override { return this; }

 private:
  void add_query_steps();
  void describe_tensors();
  void prepare();
  void run_steps(std::size_t begin, std::size_t end);
  std::string changed_input();

  Tensor slots_;  // int32 [T, K]; or empty
  bool shows_other_lists_ = false;
  const void* query_ = nullptr;                        // [T, padded heads, entry]
  attn::Element query_element_ = attn::Element::kF32;  // set by add_query_steps()
  void* latent_output_ = nullptr;                      // [T, padded heads, Lkv]
  std::size_t first_query_step_ = 0;
  std::size_t attention_step_ = 0;
  PluginProblem problem_;
  PluginKernel kernel_;  // last: destroyed before everything that it may point to
};

}  // namespace attnbench
