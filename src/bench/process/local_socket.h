// Sockets between processes of one machine, by a name that is in no file system: nothing is left
// behind when they end.
#pragma once

#include <string>

#include "bench/process/frames.h"

namespace attnbench {

/// Waits for connections at `name`. Errors: E-INTERNAL when the name is too long or taken.
Descriptor listen_at(const std::string& name);

/// Connects to who listens at `name`. Errors: E-INTERNAL when nobody does, or the name is too long.
Descriptor connect_to(const std::string& name);

}  // namespace attnbench
