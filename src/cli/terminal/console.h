// The terminal or pipe that a command speaks to: results go to stdout, everything about the run
// itself to stderr, so that a script can read one without the other.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace attnbench {

/// Tests make one of string streams.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  std::vector<std::string> command;  // argv
};

/// Standard output and error of this process.
Console process_console(std::vector<std::string> command);

/// "attnbench: <message>"; a message of several lines has the name before each. Control characters
/// are shown and not sent: names from files stand in messages.
void print_error(std::ostream& err, const std::string& message);
/// "attnbench: notice: <text>", the same way.
void print_notice(std::ostream& err, const std::string& text);

/// Whether to colour what goes to a stream: `color` is --color; auto is a terminal without
/// NO_COLOR (no-color.org) that is not dumb.
bool use_color(const std::string& color, bool is_terminal);

/// Whether TERM names a terminal that knows no escape sequences.
bool is_dumb_terminal();

/// Columns of the terminal on `fd`; else COLUMNS; else 80 for a terminal that does not tell, and
/// no limit for a pipe or file, where nothing should be cut.
int output_width(int fd);

}  // namespace attnbench
