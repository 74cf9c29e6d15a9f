#include "cli/terminal/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/system/printable.h"

namespace attnbench {

Console process_console(std::vector<std::string> command) {
  return {std::cout, std::cerr, isatty(STDOUT_FILENO) == 1, isatty(STDERR_FILENO) == 1,
          std::move(command)};
}

void print_error(std::ostream& err, const std::string& message) {
  std::istringstream lines(printable_lines(message));
  for (std::string line; std::getline(lines, line);) err << "attnbench: " << line << "\n";
}

void print_notice(std::ostream& err, const std::string& text) {
  print_error(err, "notice: " + text);
}

bool use_color(const std::string& color, bool is_terminal) {
  if (color != "auto") return color == "always";
  const char* no_color = std::getenv("NO_COLOR");
  const bool refused = no_color != nullptr && *no_color != '\0';
  return is_terminal && !refused && std::getenv("TERM") != nullptr && !is_dumb_terminal();
}

bool is_dumb_terminal() {
  const char* term = std::getenv("TERM");
  return term != nullptr && std::string_view(term) == "dumb";
}

int output_width(int fd) {
  constexpr int kDefaultWidth = 80;
  constexpr int kUnlimitedWidth = 100'000;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
    const std::string_view text = columns;
    int width = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error == std::errc() && end == text.data() + text.size() && width > 0) return width;
  }
  return isatty(fd) == 1 ? kDefaultWidth : kUnlimitedWidth;
}

}  // namespace attnbench
