// Text on its way to a user or a shell: quoting, nearest names, cutting to a width, durations.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// As one word of a POSIX shell; left as it is when that is safe.
std::string shell_quote(std::string_view text);

/// An ECMAScript regular expression that matches `text` and nothing else, anchored at both ends.
std::string exact_regex(std::string_view text);

/// The candidate with the fewest edits from `name` (letter case counts little); empty when none is
/// near enough to be a likely typing error.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "; did you mean 'X'?" or the empty string.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

/// At most `width` characters, the middle replaced by "..."; ids differ at both ends.
std::string cut_middle(std::string_view text, std::size_t width);

/// `text`, which begins in column `column`, in lines that end by `width`: those after the first
/// begin with `indent` spaces. Without room for 20 columns the text is left as it is.
std::string hang(const std::string& text, std::size_t column, std::size_t width,
                 std::size_t indent);

/// "12s", "3m05s".
std::string format_elapsed(double seconds);

/// "1.50 MiB".
std::string format_bytes(double bytes);

/// "2.15 TFLOP" style: `value` with an SI prefix and three significant digits.
std::string format_si(double value, std::string_view unit);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace attnbench
