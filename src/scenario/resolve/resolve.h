// From the fields of one case to a complete problem: defaults that depend on other fields, the
// batch, and every contradiction that no backend could satisfy (contract section 1;
// what only one backend cannot do is that backend's refusal, not an error here).
#pragma once

#include <string>

#include "core/problem/problem.h"
#include "scenario/batch/batch.h"
#include "scenario/resolve/case_values.h"

namespace attnbench {

/// `problem` holds the given fields; `batch` is the case's batch as written, or null. Returns the
/// label of the batch for case names. Errors name file, line and key.
std::string resolve_case(const CaseValues& values, const Value* batch, BatchReader& reader,
                         Problem& problem);

/// Parts of it, in this order.
void resolve_dimensions(const CaseValues& values, Problem& problem);
std::string resolve_batch(const CaseValues& values, const Value* batch, BatchReader& reader,
                          Problem& problem);
void check_attention(const CaseValues& values, const Problem& problem);
void resolve_cache(const CaseValues& values, Problem& problem);
void check_modes(const CaseValues& values, const Problem& problem);

/// Type op: what the heads follow from, before them; the other keys of the section after the batch.
void resolve_op_entries(const CaseValues& values, Problem& problem);
void resolve_op(const CaseValues& values, Problem& problem);
/// Contradictions; output_quant and mm_encoder as far as an operation reads them.
void check_op(const CaseValues& values, const Problem& problem);

}  // namespace attnbench
