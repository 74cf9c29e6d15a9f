// Text of messages: names and values that came from a file on their way to a terminal, where what
// would move the cursor, colour the screen or turn the line around is shown instead of sent; and
// the phrases that many messages share.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// Bytes of the code point at the start of `text`, 0 when it is not valid UTF-8. `text` has some.
/// Overlong forms, surrogates and values beyond U+10FFFF are not valid.
std::size_t code_point_length(std::string_view text);

/// One line: control characters as "\n", "\x1b" or "\u009b", those that change the direction of
/// writing as "\u202e", invalid UTF-8 as U+FFFD. Doing it twice changes nothing.
std::string printable(std::string_view text);
/// The same of a text of several lines: line feeds and tabs stay. For tables and reports, whose
/// texts come from result files.
std::string printable_lines(std::string_view text);

/// printable() of at most `longest` bytes, "..." for the rest: a hostile name may be as long as the
/// file.
std::string shown(std::string_view text, std::size_t longest = 200);

/// "'a', 'b', ... 7 more": at most 50 of them, each as shown() gives it, so that a message about
/// unknown names stays readable whatever a file holds.
std::string quoted_names(const std::vector<std::string>& names);

/// "a, b or c": the words that would have been accepted, in the order given. Not escaped: they are
/// the program's own.
std::string either_of(const std::vector<std::string>& words);

/// How a process ended, by the status that waitpid() gave: "exit status 3", "signal 11
/// (Segmentation fault)".
std::string describe_wait_status(int status);

}  // namespace attnbench
