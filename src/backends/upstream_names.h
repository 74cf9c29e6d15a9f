// Names that upstream knows and the list of backends does not (semantics §13.3): other names of
// backends of the list, and backends that cannot run here. Whoever names one of the latter gets its
// cases as unsupported, in upstream's words, and not an unknown name.
#pragma once

#include <string_view>

#include "backends/backend.h"

namespace attnbench {

/// The backend of the list that upstream calls so, or one that refuses every case; null for a name
/// that is not upstream's either. Plugins and the list come first: a user may have one of the
/// names.
const Backend* find_upstream_backend(std::string_view name);

}  // namespace attnbench
