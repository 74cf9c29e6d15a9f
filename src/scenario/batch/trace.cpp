#include "scenario/batch/trace.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "scenario/text/files.h"

namespace attnbench {
namespace {

constexpr std::size_t kMaxTraceBytes = std::size_t{1} << 30;
// Longer prompts than any model reads are damage; sums of a batch also stay inside 64 bits.
constexpr std::int64_t kMaxLength = 100000000;
constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

struct Line {
  const std::string& file;
  int number;
  std::string_view text;

  [[noreturn]] void reject(std::string_view expected) const {
    fail(ErrorKind::kFormat, "{}:{}: expected {}, found '{}'", file, number, expected,
         text.substr(0, 80));
  }
};

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

void check_lengths(const Line& line, const TraceRequest& request) {
  if (request.prompt_tokens < 1 || request.prompt_tokens > kMaxLength ||
      request.generated_tokens < 0 || request.generated_tokens > kMaxLength) {
    line.reject(fmt::format("1 to {0} prompt tokens and 0 to {0} generated ones", kMaxLength));
  }
}

TraceRequest parse_azure_line(const Line& line) {
  constexpr std::string_view kExpected = "a line TIMESTAMP,ContextTokens,GeneratedTokens";
  const std::size_t last = line.text.rfind(',');
  const std::size_t first = line.text.find(',');
  if (first == std::string_view::npos || first == last || line.text.find(',', first + 1) != last) {
    line.reject(kExpected);
  }
  const auto prompt = parse_count(line.text.substr(first + 1, last - first - 1));
  const auto generated = parse_count(line.text.substr(last + 1));
  if (!prompt || !generated) line.reject(kExpected);
  return {*prompt, *generated};
}

TraceRequest parse_mooncake_line(const Line& line) {
  constexpr std::string_view kExpected =
      "a JSON object with integers input_length, output_length and a list of integers hash_ids";
  const auto json = nlohmann::json::parse(line.text, nullptr, false);
  if (!json.is_object()) line.reject(kExpected);
  const auto integer = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) line.reject(kExpected);
    return found->template get<std::int64_t>();
  };
  TraceRequest request{integer("input_length"), integer("output_length")};
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) line.reject(kExpected);
  for (const auto& id : *ids) {
    if (!id.is_number_integer()) line.reject(kExpected);
    request.prefix_blocks.push_back(id.get<std::int64_t>());
  }
  return request;
}

}  // namespace

std::vector<TraceRequest> parse_trace(const std::string& text, const std::string& file,
                                      TraceFormat format) {
  std::vector<TraceRequest> requests;
  bool header_due = format == TraceFormat::kAzureLlm;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    Line line{file, ++number, std::string_view(text).substr(begin, end - begin)};
    begin = end + 1;
    if (line.text.ends_with('\r')) line.text.remove_suffix(1);
    if (line.text.empty()) continue;
    if (header_due) {
      if (line.text != kAzureHeader) line.reject(fmt::format("the header {}", kAzureHeader));
      header_due = false;
      continue;
    }
    requests.push_back(format == TraceFormat::kAzureLlm ? parse_azure_line(line)
                                                        : parse_mooncake_line(line));
    check_lengths(line, requests.back());
  }
  if (requests.empty()) {
    fail(ErrorKind::kFormat, "{}:1: expected a trace of requests, found none", file);
  }
  return requests;
}

std::span<const EnumRow<TraceFormat>> enum_rows(TraceFormat) {
  using enum TraceFormat;
  static constexpr auto kRows = every_value<EnumRow<TraceFormat>>({
      {kAzureLlm, "azure_llm", "CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens"},
      {kMooncake, "mooncake", "JSON lines with timestamp, input_length, output_length, hash_ids"},
  });
  return kRows;
}

std::vector<TraceRequest> read_trace(const std::filesystem::path& path, TraceFormat format) {
  return parse_trace(read_text_file(path, kMaxTraceBytes), path.string(), format);
}

}  // namespace attnbench
