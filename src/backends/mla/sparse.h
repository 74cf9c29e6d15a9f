// MLA over listed keys (semantics §8.9): an indexer has chosen topk keys for every row, and every
// row is a decode over them. Entries of fp8_ds_mla are read in place for short queries; requests
// with longer ones are upconverted into a 16-bit workspace first, group by group, because each of
// their entries is read by many rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/mla/work.h"

namespace attnbench {

/// Queues the steps for every row of the batch; they write MlaWork::output and LSE as a whole.
/// With an indexer its steps come first, and what is returned tells after a run whether it has
/// chosen other keys than the definition does, in words or not at all; else it is empty.
std::function<std::string()> add_mla_sparse(MlaWork& work);

/// The slots of the keys that every row's list names, [T, topk], -1 for places of a list that name
/// none; of the requests with a place in the workspace its rows instead
/// (SparseIndexArgs::workspace_starts). A plugin's kernel gets the same slots.
std::vector<std::int32_t> mla_sparse_slots(const MlaWork& work,
                                           const std::vector<std::int32_t>& workspace_starts = {});

}  // namespace attnbench
