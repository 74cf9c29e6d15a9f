// The pipeline of MLA: what comes before and after attention, and what a run gives (semantics §8,
// §9). In front of attention latents are written into the cache; behind it the output is quantised
// for the next layer where the problem says so. What lies between is queued by the stages
// (mla/decode.h, mla/prefill.h, mla/sparse.h), or by a user's kernel (plugin/mla_pipeline.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/mla/work.h"
#include "backends/output_quant.h"
#include "backends/sample_side.h"

namespace attnbench {

/// Quantises MlaWork::output, of which only the first T rows are read and written.
class MlaOutputQuant {
 public:
  /// Adds its step; nothing for output_quant none.
  explicit MlaOutputQuant(MlaWork& work);

  bool is_on() const { return codes_ != nullptr; }
  /// Codes and scales after a run. Scales that stand for no row keep what they held.
  DeviceBuffers::Rows read_codes() const;
  Tensor read_scales() const;
  /// Codes and scales are kept of a sample too.
  void add_outputs(SampleSide& side) const;

 private:
  void add_static();
  void add_groups();
  void add_nvfp4();
  /// Swizzled scales begin as zeros, so that rows and blocks of padding read as such (§9.4).
  attn::ConcatParams zero_scales() const;

  MlaWork& work_;
  OutputQuantLayout layout_;
  void* codes_ = nullptr;  // [T_pad, ...]
  void* scales_ = nullptr;
  std::int64_t scale_bytes_ = 0;
};

class MlaPipeline : public Pipeline {
 public:
  const std::vector<Step>& steps() const override { return work_.steps; }
  void poison_outputs() override;
  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;

 protected:
  /// Adds the cache write; the steps of attention follow, then add_output_quant(). `capability`
  /// must outlive it. Errors: E-CAPACITY, E-INTERNAL without MLA inputs.
  MlaPipeline(const MlaCapability& capability, const Problem& problem, const BackendInputs& inputs,
              Ops& ops);
  void add_output_quant() { quant_ = std::make_unique<MlaOutputQuant>(work_); }
  MlaWork& work() { return work_; }
  const MlaWork& work() const { return work_; }

 private:
  void read_partials(PipelineOutput& result);

  Problem problem_;
  MlaWork work_;
  std::unique_ptr<MlaOutputQuant> quant_;
};

/// The pipeline of a native backend: decodes, prefills or listed keys, as the plan has them.
/// Errors: those of MlaPipeline.
std::unique_ptr<Pipeline> make_mla_pipeline(const MlaCapability& capability, const Problem& problem,
                                            const BackendInputs& inputs, Ops& ops);

}  // namespace attnbench
