// The case of the multimodal encoder: ragged or batched queries, keys and values, also in fp8 with
// scales that are loaded or made from the data (semantics §10). make_case() makes one; what its
// backends share are the EncoderValues in it.
//
// In fp8 a run first compares scales and codes, which must be the very bytes that the definition
// gives, and then the output against the reference on the dequantised values. A case here never
// goes on to the next one (Case::move_on): no sweep changes only how an encoder does its work.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases/case.h"
#include "bench/cases/encoder_values.h"

namespace attnbench {

class EncoderCase final : public Case {
 public:
  /// `problem` must outlive the case. options: threads and the interruption of references.
  EncoderCase(const Problem& problem, const ReferenceOptions& options)
      : values_(problem, options) {}
  const Problem& problem() const override { return values_.problem(); }
  const std::vector<std::string>& notices() override { return values_.notices(); }
  std::unique_ptr<CaseRun> start(const Backend& backend) override;

 private:
  EncoderValues values_;
};

}  // namespace attnbench
