// Lines of explain() about a backend's paged cache.
#pragma once

#include "backends/backend.h"

namespace attnbench {

/// Appends layout, physical shape and element type.
void add_cache_facts(const Problem& problem, CacheLayoutKind kind, const KernelRules& rules,
                     Facts& facts);

}  // namespace attnbench
