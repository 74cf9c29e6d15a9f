// What the readers and writers of scale files share: their text, JSON as Python takes it, numbers,
// the order of layers (semantics §10.7, §11.3, contract section 6).
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// `what` begins the messages: "FP8 scale file". Errors: E-IO unless a regular file that can be
/// read, E-FORMAT beyond 256 MiB.
std::string read_scale_text(const std::filesystem::path& path, std::string_view what);

/// An object; NaN, Infinity and -Infinity, which Python reads and writes, become strings, to be
/// judged as values and not as syntax; `mark` begins these strings, where they are to be told from
/// those that the text has. `where` begins the messages. With `duplicates` the last of several
/// equal names of an object counts, and each is told of there. Errors: E-FORMAT, without
/// `duplicates` also for such a name; E-VALUE for a number beyond double.
nlohmann::ordered_json parse_scale_json(std::string_view text, const std::string& where,
                                        std::vector<std::string>* duplicates = nullptr,
                                        std::string_view mark = "");

/// A mark that no text has, as JSON writes it: a control character.
inline constexpr std::string_view kNumberMark = "\\u0001";

/// What a JSON parser says, without its name and error numbers: "line 2, column 1: unexpected end
/// of input; expected '}'".
std::string json_complaint(std::string_view what);

/// A number as Python's float() takes it, numbers in strings included. Errors: E-FORMAT.
double scale_number(const nlohmann::ordered_json& value, const std::string& where);

/// Finite and > 0, also as the float32 that kernels use.
bool is_scale(double value);

/// The shortest digits that read back, 2.0 as "2.0".
std::string python_repr(double value);

/// A JSON value in a message; containers, which may be nested without end, only by their kind.
std::string shown_json(const nlohmann::ordered_json& value);

/// E-VALUE of upstream (semantics §10.7) for a layer that `file` has no scales for.
[[noreturn]] void fail_without_scales(std::string_view layer, std::string_view file,
                                      const std::vector<std::string>& available);

/// Numbers inside names count as numbers: "layers.2" stands before "layers.10".
bool natural_less(std::string_view a, std::string_view b);

}  // namespace attnbench
