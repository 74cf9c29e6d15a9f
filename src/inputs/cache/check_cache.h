// Whether a step wrote what it had to into the cache, and nothing else. Attention may come out
// right over a cache that is wrong, when a step writes to a neighbour's slot or past a row, so the
// whole cache is compared byte by byte.
#pragma once

#include <string>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"

namespace attnbench {

/// Compares a cache after the step with what a correct write leaves: every live position must hold
/// `stored`'s bytes (and scales), every other byte must be as `before`. Returns the empty string,
/// or a sentence naming the first difference (rank, request, position, K or V, head, element). At
/// int8 levels `key_scales_after` is the cache of key scales after the step. Errors: E-SHAPE when
/// either has another type or size than before.
///
/// The sentence reads "request 1, position 33, K, head 0, element 5: expected byte 0x7f, got 0x80",
/// or names block and slot where nothing was to be written.
std::string check_cache(const Problem& problem, const StoredKv& stored, const PagedCache& before,
                        const Tensor& after, const Tensor* key_scales_after = nullptr);

}  // namespace attnbench
