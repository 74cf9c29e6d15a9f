// The pipeline of MLA: what comes before and after attention, and what a run gives (semantics §8,
// §9).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/mla/output.h"
#include "backends/mla/work.h"

namespace attnbench {

class MlaPipeline : public Pipeline {
 public:
  const std::vector<Step>& steps() const override { return work_.steps; }
  void poison_outputs() override;
  PipelineOutput read_output(bool with_cache) override;

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

}  // namespace attnbench
