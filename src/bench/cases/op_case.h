// The case of one operation by itself (attention.type op): its operands, what it must leave, what
// is saved of it. make_case() makes one.
//
// There is no tensor of attention to compare: the expectations of bench/judge say of every output
// which bytes or values it must hold. The cache of a write is checked twice, cell by cell with the
// position named (CaseRun::check_stored) and as bytes (judge), because the first says where a
// kernel went wrong and the second counts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/cases/case.h"
#include "bench/judge/op_expect.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// What the backends of an operation's case share, made when first used.
class OpValues {
 public:
  explicit OpValues(const Problem& problem) : problem_(problem) {}

  const Problem& problem() const { return problem_; }
  const OpInputs& inputs();
  /// The cache that a fused write leaves depends on the rows that it rotated: only for those is
  /// `output` looked at.
  const OpExpectations& expectations(const PipelineOutput* output);
  const std::vector<std::string>& notices();

 private:
  const Problem& problem_;
  std::optional<OpInputs> inputs_;
  std::optional<OpExpectations> expectations_;
  std::optional<std::vector<std::string>> notices_;
};

class OpCase final : public Case {
 public:
  /// `problem` must outlive the case.
  explicit OpCase(const Problem& problem) : values_(problem) {}
  const Problem& problem() const override { return values_.problem(); }
  const std::vector<std::string>& notices() override { return values_.notices(); }
  std::unique_ptr<CaseRun> start(const Backend& backend) override;

 private:
  OpValues values_;
};

}  // namespace attnbench
