// The KV cache of one case, with what depends on its pages: shared prefix and context parallelism.
//
// Pages are counted in blocks of block_size tokens; with ranks (dcp.world_size > 1) one block id
// serves block_size tokens of every rank, so the same batch needs fewer ids. The rules of the types
// of a cache are rows of core/kv_format, nothing here names a single type.
//
// Called by resolve_case() once dimensions and batch are known. Types without a cache (encoders)
// still have the section checked as far as it says something about them: a scale file or a scale
// list that nothing would read is an error, since a user would take it for one that was used.
#pragma once

#include "core/problem/problem.h"
#include "scenario/resolve/case_values.h"

namespace attnbench {

/// Checks block size, dtype, scales, cascade and dcp, in this order, and sets kv_cache.num_blocks
/// where it is not given: the blocks that the batch needs, those of a shared prefix counted once,
/// and a sixteenth more (2 at least). The spare blocks hold poison, so that a kernel that reads a
/// page of another request shows. Errors: as resolve_case().
void resolve_cache(const CaseValues& values, Problem& problem);

}  // namespace attnbench
