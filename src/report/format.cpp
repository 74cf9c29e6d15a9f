#include "report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "core/system/printable.h"

namespace attnbench {
namespace {

constexpr const char* kMissing = "-";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Four significant digits without an exponent for values in [1, 10000).
std::string four_digits(double value) {
  const int decimals = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string three_digits(double value) {
  const int decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

/// The first (or last) `count` code points of valid UTF-8.
std::string_view first_columns(std::string_view text, std::size_t count) {
  std::size_t end = 0;
  while (end < text.size() && (is_continuation(text[end]) || count-- > 0)) ++end;
  return text.substr(0, end);
}
std::string_view last_columns(std::string_view text, std::size_t count) {
  std::size_t begin = text.size();
  while (count > 0 && begin > 0) {
    if (!is_continuation(text[--begin])) --count;
  }
  return text.substr(begin);
}

}  // namespace

std::string format_error(double value) {
  return std::isfinite(value) ? fmt::format("{:.1e}", value) : kMissing;
}

std::string format_ratio(double value) {
  return std::isfinite(value) ? three_digits(value) : kMissing;
}

std::string format_share(double share) {
  if (!std::isfinite(share)) return kMissing;
  const double percent = 100 * share;
  if (percent > 0 && percent < 0.001) return "<0.001%";
  const int decimals = percent >= 1 || percent == 0 ? 1 : percent >= 0.1 ? 2 : 3;
  return fmt::format("{:.{}f}%", percent, decimals);
}

std::string format_time(double time_us) {
  if (!std::isfinite(time_us)) return kMissing;
  if (time_us < 1e3) return four_digits(time_us) + " us";
  if (time_us < 1e6) return four_digits(time_us * 1e-3) + " ms";
  return four_digits(time_us * 1e-6) + " s";
}

std::string format_noise(double noise) {
  return std::isfinite(noise) ? fmt::format("{:.1f}%", 100 * noise) : kMissing;
}

namespace {

constexpr const char* kGflops = "GFLOP/s";
constexpr const char* kTflops = "TFLOP/s";

bool is_on_cpu(const Result& result) { return result.device == "cpu"; }

/// Three digits; of a very small rate the first.
std::string rate_digits(double rate) {
  return rate > 0 && rate < 0.01 ? fmt::format("{:.1g}", rate) : three_digits(rate);
}

}  // namespace

const char* flop_unit(const std::vector<Result>& results) {
  return std::all_of(results.begin(), results.end(), is_on_cpu) ? kGflops : kTflops;
}

const char* flop_unit(const std::vector<const Result*>& results) {
  const auto is_cpu = [](const Result* result) { return is_on_cpu(*result); };
  return std::all_of(results.begin(), results.end(), is_cpu) ? kGflops : kTflops;
}

std::string format_gbps(const Throughput& throughput) {
  if (throughput.bytes == 0 && !(throughput.gbps > 0)) return "";
  return std::isfinite(throughput.gbps) ? rate_digits(throughput.gbps) : kMissing;
}

std::string format_flops(const Throughput& throughput, const std::string& unit) {
  if (throughput.flops == 0 && !(throughput.tflops > 0)) return "";
  if (!std::isfinite(throughput.tflops)) return kMissing;
  return rate_digits(throughput.tflops * (unit == kGflops ? 1e3 : 1));
}

std::string format_rates(const Throughput& throughput, const std::string& unit) {
  std::string text;
  const auto add = [&](const std::string& number, const std::string& of) {
    if (number.empty()) return;
    text += (text.empty() ? "" : ", ") + (number == kMissing ? number : number + " " + of);
  };
  add(format_gbps(throughput), "GB/s");
  add(format_flops(throughput, unit), unit);
  return text;
}

std::string format_roofline(const Throughput& throughput) {
  const double percent = throughput.roofline_pct;
  if (!std::isfinite(percent)) return "";
  return fmt::format("{:.{}f}%", percent, percent < 10 ? 1 : 0);
}

std::string format_peak(const Throughput& throughput) {
  const double percent = throughput.peak_pct;
  return std::isfinite(percent) ? fmt::format("{:.{}f}%", percent, percent < 10 ? 1 : 0) : "";
}

std::string format_clock(const Result& result) {
  if (!result.timing || !std::isfinite(result.timing->cycles)) return "";
  const Timing& timing = *result.timing;
  std::vector<double> mhz = timing.samples_sm_mhz;
  std::sort(mhz.begin(), mhz.end());
  std::string text = timing.cycles < 1e6 ? three_digits(timing.cycles * 1e-3) + "k cycles"
                                         : three_digits(timing.cycles * 1e-6) + "M cycles";
  if (!mhz.empty()) {
    text += fmt::format(" at {:.0f} MHz ({:.0f} to {:.0f})", mhz[mhz.size() / 2], mhz.front(),
                        mhz.back());
  }
  const std::string peak = result.throughput ? format_peak(*result.throughput) : "";
  if (!peak.empty()) text += fmt::format(", {} of the peak at that clock", peak);
  if (!timing.pace.empty()) text += ", pace " + timing.pace;
  return text;
}

std::string painted(const std::string& text, const char* color, bool enabled) {
  constexpr const char* kReset = "\x1b[0m";
  return enabled ? color + text + kReset : text;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(byte); }));
}

std::string shorten_middle(const std::string& text, std::size_t width) {
  if (display_width(text) <= width) return text;
  if (width == 0) return "";
  const std::size_t tail = (width - 1) / 2;
  std::string result(first_columns(text, width - 1 - tail));
  result += kEllipsis;
  result += last_columns(text, tail);
  return result;
}

std::string wrap_text(const std::string& text, std::size_t width, const std::string& indent) {
  const std::size_t room = width > indent.size() + 20 ? width - indent.size() : 20;
  std::string result;
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view line = first_columns(rest, room);
    if (line.size() < rest.size() && rest[line.size()] != ' ') {
      const std::size_t space = line.rfind(' ');
      if (space != std::string_view::npos && space > 0) line = line.substr(0, space);
    }
    result += indent + std::string(line) + "\n";
    rest.remove_prefix(line.size());
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  }
  return result;
}

bool is_ranked(const Result& result) {
  return result.timing && result.status != Status::kImplausible;
}

int badness(Status status) {
  switch (status) {
    case Status::kIncorrect:
      return 0;
    case Status::kImplausible:
      return 1;
    case Status::kError:
      return 2;
    case Status::kSkipped:
      return 3;
    case Status::kUnsupported:
      return 4;
    case Status::kUnverified:
      return 5;
    case Status::kPassed:
      return 6;
  }
  return 0;
}

std::string summary_line(const StatusCounts& counts) {
  const std::array<std::pair<int, const char*>, 7> parts{{{counts.incorrect, "incorrect"},
                                                          {counts.implausible, "implausible"},
                                                          {counts.error, "error"},
                                                          {counts.skipped, "skipped"},
                                                          {counts.unsupported, "unsupported"},
                                                          {counts.unverified, "unverified"},
                                                          {counts.passed, "passed"}}};
  std::string line;
  for (const auto& [count, name] : parts) {
    if (count == 0) continue;
    if (!line.empty()) line += ", ";
    line += fmt::format("{} {}", count, name);
  }
  return line.empty() ? "no results" : line;
}

std::string sanitize_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = code_point_length(text);
    result += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string markdown_cell(const std::string& text) {
  std::string result;
  for (const char character : printable_lines(text)) {
    switch (character) {
      case '|':
        result += "\\|";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '<':
        result += "&lt;";
        break;
      case '\r':
      case '\n':
        result += ' ';
        break;
      default:
        result += character;
    }
  }
  return result;
}

std::string xml_escape(std::string_view text) {
  std::string result;
  for (const char character : sanitize_utf8(text)) {
    switch (character) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&apos;";
        break;
      case '\t':
        result += "&#9;";
        break;
      case '\n':
        result += "&#10;";
        break;
      case '\r':
        result += "&#13;";
        break;
      default: {
        const bool control = static_cast<unsigned char>(character) < 0x20;
        result += control ? std::string("\xEF\xBF\xBD") : std::string(1, character);
      }
    }
  }
  return result;
}

}  // namespace attnbench
