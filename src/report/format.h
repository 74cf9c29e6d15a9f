// Numbers and texts as people read them, shared by tables, Markdown and JUnit.
//
// One value looks the same wherever it is shown. Functions that shorten or pad count code points as
// columns, which is right for the names and units that occur here. Texts of files and libraries may
// hold anything; the functions at the end make them fit for one target each, and none of them is
// enough for another target.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/result/result.h"

namespace attnbench {

/// "1.2e-03"; "-" for a number that does not exist.
std::string format_error(double value);
/// "0.98", "12.3"; "-" for a number that does not exist.
std::string format_ratio(double value);
/// A relative error as a share: "4.6%", "0.046%", "98.6%"; "-" for a number that does not exist.
std::string format_share(double share);
/// "12.34 us", "1.234 ms", "2.500 s": four digits and the unit that suits.
std::string format_time(double time_us);
/// "0.8%"; "-" for a number that does not exist.
std::string format_noise(double noise);
/// The unit of arithmetic rates that are shown beside each other: "TFLOP/s", or "GFLOP/s" where all
/// ran on the CPU. Why by the device: a unit that follows from measured numbers, or from which of
/// the ceilings is met, is another in the next run.
const char* flop_unit(const std::vector<Result>& results);
const char* flop_unit(const std::vector<const Result*>& results);
/// Rates without their units: of memory in GB/s, and of arithmetic in `unit` of flop_unit(). Empty
/// for an operation that moves, or computes, nothing.
std::string format_gbps(const Throughput& throughput);
std::string format_flops(const Throughput& throughput, const std::string& unit);
/// Both with their units: "45.1 GB/s, 312 GFLOP/s".
std::string format_rates(const Throughput& throughput, const std::string& unit);
/// Share of the measured ceiling: "92%"; empty without a ceiling. What is beyond belief has the
/// status implausible.
std::string format_roofline(const Throughput& throughput);
/// Share of the matrix units' peak at the observed clock: "68%"; empty where it is not known.
std::string format_peak(const Throughput& throughput);
/// What a time was worth: "2.41M cycles at 1755 MHz (1740 to 1980), 68% of the peak at that clock,
/// pace cool"; empty where the clock is not known.
std::string format_clock(const Result& result);

/// Whether the result has a time that may be compared with others: none that beats the device.
bool is_ranked(const Result& result);

/// Dim text in a terminal, for what explains a line.
inline constexpr const char* kDim = "\x1b[2m";
/// `text` in a colour (an escape sequence) and back to the default, or unchanged.
std::string painted(const std::string& text, const char* color, bool enabled);

/// Columns that UTF-8 text takes, one a code point.
std::size_t display_width(std::string_view text);
/// Shortened in the middle with an ellipsis to at most `width` columns.
std::string shorten_middle(const std::string& text, std::size_t width);
/// Lines of at most `width` columns, broken at spaces where possible.
std::string wrap_text(const std::string& text, std::size_t width, const std::string& indent);

/// "2 incorrect, 1 error, 3 passed": what is not zero, worst first.
std::string summary_line(const StatusCounts& counts);

/// The results' status in the order of badness: incorrect first, passed last.
int badness(Status status);

/// Invalid UTF-8 bytes become U+FFFD.
std::string sanitize_utf8(std::string_view text);

/// For a cell of a Markdown table: without cell separators, line breaks, tags and control
/// characters.
std::string markdown_cell(const std::string& text);

/// For text and attributes of XML 1.0: markup is escaped, characters that XML cannot hold become
/// U+FFFD.
std::string xml_escape(std::string_view text);

}  // namespace attnbench
