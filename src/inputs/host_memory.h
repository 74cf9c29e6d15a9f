// Whether what a case needs of this machine's memory is there.
#pragma once

#include "core/problem/problem.h"

namespace attnbench {

/// Of a case with queries, keys and values, or the latents of MLA. Errors: E-CAPACITY when inputs,
/// stored keys and the cache exceed this machine's memory; never for shapes alone.
void check_inputs_fit(const Problem& problem);

}  // namespace attnbench
