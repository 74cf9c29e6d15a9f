#include "bench/cases/case.h"

#include "core/error.h"

namespace attnbench {

std::unique_ptr<System> make_system(const Problem& problem, const ReferenceOptions& options) {
  switch (problem.attention.type) {
    case AttentionType::kDecoder:
    case AttentionType::kEncoder:
    case AttentionType::kEncoderOnly:
    case AttentionType::kEncoderDecoder:
      return make_attention_system(problem, options);
    case AttentionType::kMla:
      return make_mla_system(problem, options);
    case AttentionType::kMmEncoder:
      return make_mm_system(problem, options);
    case AttentionType::kOp:
      return make_op_system(problem, options);
  }
  fail(ErrorKind::kInternal, "attention.type {}: no system serves it",
       to_string(problem.attention.type));
}

}  // namespace attnbench
