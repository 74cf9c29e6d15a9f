// From the fields of one case to a complete problem: defaults that depend on other fields, the
// batch, and every contradiction that no backend could satisfy (contract section 1). What only one
// backend cannot do is that backend's refusal, not an error here.
//
// The order of the steps is part of the contract with users, since the first contradiction is the
// one that they see: dimensions (heads, causal, scale), batch, attention, the section of a single
// operation (modes.h), cache, shared prefix and ranks (cache.h), and last the checks that need all
// of it (modes.h). A step may rely on what the steps before it have filled in.
//
// A key that users did not give is told from one that they gave by CaseValues::gives(), never by
// its value: zero in a dimension means "not given", but a default that equals what was written is
// still what was written. Derived values that are given, too, must agree, since a silent correction
// would measure another case than the one in the file.
#pragma once

#include <string>

#include "core/problem/problem.h"
#include "scenario/batch/batch.h"
#include "scenario/resolve/case_values.h"

namespace attnbench {

/// `problem` holds the given fields; `batch` is the case's batch as written, or null, where it
/// follows from mm_encoder.images, from its dense form (batch_size rows of kv_len keys) or from
/// op.tokens; given beside one of these it must agree. Returns the label of the batch for case
/// names: its canonical spec, or "trace-step<N>". Errors name file, line and key: E-FORMAT for what
/// is missing, E-SHAPE, E-DTYPE, E-VALUE and E-CONFIG for contradictions, E-CAPACITY for a batch
/// that 32-bit counts cannot hold.
std::string resolve_case(const CaseValues& values, const Value* batch, BatchReader& reader,
                         Problem& problem);

}  // namespace attnbench
