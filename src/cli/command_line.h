// argv -> command -> exit code.
#pragma once

#include "cli/console.h"

namespace attnbench {

/// Parses console.command (argv) and runs the command that it names; --help and --version print and
/// return 0. Errors: kUsage for a command line that does not parse, and those of the command.
int run_command_line(const Console& console);

}  // namespace attnbench
