// attnbench: builds the command line, reports an Error once, returns the exit code.
//
// Every failure ends here as one line on stderr that begins with "attnbench:" and its class, so
// that scripts can tell them apart; no exception leaves the program.
#include <csignal>
#include <exception>
#include <iostream>
#include <new>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/terminal/console.h"
#include "core/error.h"

int main(int argc, char** argv) {
  using namespace attnbench;
  // Why: a file that meets the limit of its size is an error of that file, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = run_command_line(process_console({argv, argv + argc}));
    // Why: a table that went to a full disk is a result that nobody got.
    if (!std::cout.flush()) fail(ErrorKind::kIo, "cannot write to standard output");
    return code;
  } catch (const Error& error) {
    print_error(std::cerr, error.full_message());
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    std::cerr << "attnbench: " << error_code(ErrorKind::kCapacity) << ": out of memory\n";
    return kExitError;
  } catch (const std::exception& error) {
    print_error(std::cerr, Error(ErrorKind::kInternal, error.what()).full_message());
    return kExitError;
  }
}
