// Whether the next case of a run may go on with what was made for the last one.
#pragma once

#include "core/problem/problem.h"

namespace attnbench {

/// Whether two cases have the same inputs, stored caches and reference results: they differ at most
/// in how the work is done (ranks of a group, cascade.mode, blocks of the cache) and in timing.
bool same_values(const Problem& a, const Problem& b);

/// Whether each rank of a group holds the same keys as well.
bool same_ranks(const Problem& a, const Problem& b);

}  // namespace attnbench
