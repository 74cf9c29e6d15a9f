#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

#include "report/reporter.h"

namespace attnbench {
namespace {

/// Quoted when the field holds a separator, a quote or a line break (RFC 4180).
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char character : text) {
    if (character == '"') result += '"';
    result += character;
  }
  return result + "\"";
}

/// The shortest text that reads back as the same number.
std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }
std::string number(std::int64_t value) { return fmt::format("{}", value); }

struct Column {
  const char* name;
  std::string (*field)(const Result&);
};

/// A number of an optional part of a result; empty without it.
template <auto part, auto member>
std::string field(const Result& result) {
  return result.*part ? number((*(result.*part)).*member) : "";
}
template <auto part, auto member>
std::string text_field(const Result& result) {
  return result.*part ? (*(result.*part)).*member : "";
}

std::string sample_count(const Result& result) {
  return result.timing ? fmt::format("{}", result.timing->samples_us.size()) : "";
}

const std::array kColumns{
    Column{"id", [](const Result& r) { return r.id; }},
    Column{"scenario", [](const Result& r) { return r.scenario; }},
    Column{"case", [](const Result& r) { return r.case_name; }},
    Column{"backend", [](const Result& r) { return r.backend; }},
    Column{"device", [](const Result& r) { return r.device; }},
    Column{"status", [](const Result& r) { return std::string(to_string(r.status)); }},
    Column{"reasons",
           [](const Result& r) { return fmt::format("{}", fmt::join(r.reasons, "; ")); }},
    Column{"max_abs", field<&Result::error, &ErrorStats::max_abs>},
    Column{"mean_abs", field<&Result::error, &ErrorStats::mean_abs>},
    Column{"rms_rel", field<&Result::error, &ErrorStats::rms_rel>},
    Column{"nmse", field<&Result::error, &ErrorStats::nmse>},
    Column{"cosine", field<&Result::error, &ErrorStats::cosine>},
    Column{"err_ratio", field<&Result::error, &ErrorStats::err_ratio>},
    Column{"matched_pct", field<&Result::error, &ErrorStats::matched_pct>},
    Column{"nan_count", field<&Result::error, &ErrorStats::nan_count>},
    Column{"inf_count", field<&Result::error, &ErrorStats::inf_count>},
    Column{"checked_rows", field<&Result::error, &ErrorStats::checked_rows>},
    Column{"total_rows", field<&Result::error, &ErrorStats::total_rows>},
    Column{"lse_max_abs", field<&Result::lse_error, &ErrorStats::max_abs>},
    Column{"quantization_max_abs", field<&Result::quantization_error, &ErrorStats::max_abs>},
    Column{"quantization_rms_rel", field<&Result::quantization_error, &ErrorStats::rms_rel>},
    Column{"median_us", field<&Result::timing, &Timing::median_us>},
    Column{"min_us", field<&Result::timing, &Timing::min_us>},
    Column{"q1_us", field<&Result::timing, &Timing::q1_us>},
    Column{"q3_us", field<&Result::timing, &Timing::q3_us>},
    Column{"mean_us", field<&Result::timing, &Timing::mean_us>},
    Column{"stdev_us", field<&Result::timing, &Timing::stdev_us>},
    Column{"noise", field<&Result::timing, &Timing::noise>},
    Column{"samples", sample_count},
    Column{"l2", text_field<&Result::timing, &Timing::l2>},
    Column{"mode", text_field<&Result::timing, &Timing::mode>},
    Column{"launch_overhead_us", field<&Result::timing, &Timing::launch_overhead_us>},
    Column{"total_us", field<&Result::timing, &Timing::total_us>},
    Column{"tflops", field<&Result::throughput, &Throughput::tflops>},
    Column{"gbps", field<&Result::throughput, &Throughput::gbps>},
    Column{"kv_gbps", field<&Result::throughput, &Throughput::kv_gbps>},
    Column{"tokens_per_s", field<&Result::throughput, &Throughput::tokens_per_s>},
    Column{"flops", field<&Result::throughput, &Throughput::flops>},
    Column{"bytes", field<&Result::throughput, &Throughput::bytes>},
    Column{"roofline_pct", field<&Result::throughput, &Throughput::roofline_pct>},
    Column{"bound", text_field<&Result::throughput, &Throughput::bound>},
    Column{"repro", [](const Result& r) { return r.repro; }},
};

}  // namespace

void write_csv(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  const auto write_line = [&](const auto& field_of) {
    std::string_view separator;
    for (const Column& column : kColumns) {
      out << separator << quoted(field_of(column));
      separator = ",";
    }
    out << "\r\n";
  };
  write_line([](const Column& column) { return std::string(column.name); });
  for (const Result& result : results) {
    write_line([&](const Column& column) { return column.field(result); });
  }
}

}  // namespace attnbench
