#include "scenario/batch/trace_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/parsing.h"
#include "core/system/csv.h"

namespace attnbench {
namespace {

const std::vector<std::string_view> kPromptNames = {
    "Request tokens", "ContextTokens", "input_length", "input_tokens",
    "prompt_tokens",  "prompt_len",    "input_len"};
const std::vector<std::string_view> kAnswerNames = {
    "Response tokens",   "GeneratedTokens", "output_length", "output_tokens",
    "completion_tokens", "response_tokens", "output_len",    "generated_tokens"};
const std::vector<std::string_view> kTimeNames = {"Timestamp", "timestamp", "arrival_time", "time"};

[[noreturn]] void reject_line(const std::string& file, int number, std::string_view expected,
                              std::string_view found) {
  fail(ErrorKind::kFormat, "{}:{}: expected {}, found '{}'", file, number, expected,
       found.substr(0, 80));
}

/// Calls take(number, line) for the lines that are not empty.
template <typename Take>
void for_each_line(const std::string& text, const Take& take) {
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) take(number, line);
  }
}

std::vector<std::string> csv_fields(const std::string& file, int number, std::string_view line) {
  std::size_t at = 0;
  auto fields = read_csv_fields(line, at);
  if (!fields) reject_line(file, number, "quotes that are closed in their line", line);
  return std::move(*fields);
}

std::optional<double> as_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A count such as "17" or, as pandas writes columns with gaps, "17.0".
std::optional<std::int64_t> as_count(std::string_view text) {
  const std::optional<double> value = as_number(text);
  constexpr double kMost = 1e15;
  if (!value || !(*value >= 0) || *value > kMost || *value != std::floor(*value)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(*value);
}

struct Columns {
  std::size_t prompt = 0;
  std::size_t answer = 0;
  std::optional<std::size_t> time;
};

std::optional<std::size_t> column_of(const std::vector<std::string>& header,
                                     const std::vector<std::string_view>& names) {
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (std::find(names.begin(), names.end(), header[i]) != names.end()) return i;
  }
  return std::nullopt;
}

Columns columns_of(const std::string& file, int number, std::string_view line) {
  const std::vector<std::string> header = csv_fields(file, number, line);
  const auto prompt = column_of(header, kPromptNames);
  const auto answer = column_of(header, kAnswerNames);
  if (!prompt || !answer) {
    reject_line(file, number,
                "a header with columns such as 'Request tokens' and 'Response tokens'", line);
  }
  return {*prompt, *answer, column_of(header, kTimeNames)};
}

/// Of a list of a benchmark's result. Failed requests have lengths of 0.
void add_lists(const nlohmann::json& record, const std::string& file, int number,
               std::vector<TraceRequest>& requests) {
  const auto list = [&](const char* key) -> const nlohmann::json& {
    static const nlohmann::json kNone;
    const auto found = record.find(key);
    return found == record.end() || !found->is_array() ? kNone : *found;
  };
  const nlohmann::json& prompts = list("input_lens");
  const nlohmann::json& answers = list("output_lens");
  const nlohmann::json& starts = list("start_times");
  if (prompts.is_null() || answers.is_null() || prompts.size() != answers.size()) {
    fail(ErrorKind::kFormat,
         "{}:{}: expected lists input_lens and output_lens of equal length (vllm bench serve "
         "--save-detailed, sglang.bench_serving --output-details)",
         file, number);
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (const nlohmann::json& length : {std::cref(prompts[i]), std::cref(answers[i])}) {
      if (length.is_number_integer()) continue;
      reject_line(file, number, "whole numbers in input_lens and output_lens", length.dump());
    }
    const auto prompt = prompts[i].get<std::int64_t>();
    const auto answer = answers[i].get<std::int64_t>();
    if (prompt == 0 || answer == 0) continue;
    TraceRequest request{prompt, answer};
    if (i < starts.size() && starts[i].is_number()) request.arrival_s = starts[i].get<double>();
    requests.push_back(std::move(request));
  }
}

/// The numbers of the list behind the last `label` of a line; 0 where it is None or missing. The
/// last one, because the text of a prompt, which comes first, may hold anything.
std::int64_t listed_tokens(std::string_view line, std::string_view label) {
  const std::size_t at = line.rfind(label);
  if (at == std::string_view::npos) return 0;
  std::string_view list = line.substr(at + label.size());
  if (!list.starts_with('[') && !list.starts_with('(')) return 0;
  list = list.substr(0, list.find_first_of("])"));
  const auto is_digit = [](char letter) { return letter >= '0' && letter <= '9'; };
  std::int64_t count = 0;
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (is_digit(list[i]) && !is_digit(list[i - 1])) ++count;
  }
  return count;
}

/// A message of vLLM's about a request: "INFO 09-01 10:00:00 [logger.py:39] Received request ID:
/// ...".
struct VllmMessage {
  bool is_answer = false;
  std::string request;
  double time_s = kNoArrival;  // since the start of the year
};

std::optional<VllmMessage> vllm_message(std::string_view line) {
  const std::size_t bracket = line.find(" [");
  const std::size_t end = line.find("] ", bracket);
  if (bracket == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
  std::string_view text = line.substr(end + 2);
  VllmMessage message;
  message.is_answer = text.starts_with("Generated response ");
  for (const std::string_view start : {"Received request ", "Request ", "Generated response "}) {
    if (!text.starts_with(start)) continue;
    text.remove_prefix(start.size());
    message.request = std::string(text.substr(0, text.find_first_of(": ")));
    // "09-01 10:00:00"; a leap year has every date.
    constexpr std::size_t kStamp = 14;
    if (bracket >= kStamp) {
      const std::string stamp(line.substr(bracket - kStamp, kStamp));
      const double time = parse_timestamp("2024-" + stamp);
      if (time != kNoArrival) message.time_s = time - parse_timestamp("2024-01-01 00:00:00");
    }
    return message;
  }
  return std::nullopt;
}

}  // namespace

double parse_timestamp(std::string_view text) {
  // Why finite ones only: arrivals are sorted, and NaN has no place in an order.
  if (const std::optional<double> number = as_number(text)) {
    return std::isfinite(*number) ? *number : kNoArrival;
  }
  // YYYY-MM-DD?hh:mm:ss with an optional fraction; a zone behind it is not looked at.
  constexpr std::size_t kWholeSeconds = 19;
  if (text.size() < kWholeSeconds || text[4] != '-' || text[7] != '-' || text[13] != ':' ||
      text[16] != ':') {
    return kNoArrival;
  }
  const auto part = [&](std::size_t begin, std::size_t size) {
    return as_count(text.substr(begin, size)).value_or(-1);
  };
  const std::int64_t year = part(0, 4), month = part(5, 2), day = part(8, 2);
  const std::int64_t hour = part(11, 2), minute = part(14, 2), second = part(17, 2);
  using namespace std::chrono;
  const year_month_day date{std::chrono::year(static_cast<int>(year)),
                            std::chrono::month(static_cast<unsigned>(month)),
                            std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || hour < 0 || minute < 0 || second < 0) return kNoArrival;
  double fraction = 0;
  if (text.size() > kWholeSeconds && text[kWholeSeconds] == '.') {
    const std::size_t end = text.find_first_not_of("0123456789", kWholeSeconds + 1);
    const std::string digits = "0" + std::string(text.substr(kWholeSeconds, end - kWholeSeconds));
    fraction = as_number(digits).value_or(0);
  }
  const auto days = sys_days(date).time_since_epoch().count();
  return static_cast<double>(((days * 24 + hour) * 60 + minute) * 60 + second) + fraction;
}

std::vector<TraceRequest> parse_csv_trace(const std::string& text, const std::string& file) {
  std::vector<TraceRequest> requests;
  std::optional<Columns> columns;
  for_each_line(text, [&](int number, std::string_view line) {
    if (!columns) {
      columns = columns_of(file, number, line);
      return;
    }
    const std::vector<std::string> fields = csv_fields(file, number, line);
    const std::size_t last = std::max(columns->prompt, columns->answer);
    const auto prompt = last < fields.size() ? as_count(fields[columns->prompt]) : std::nullopt;
    const auto answer = last < fields.size() ? as_count(fields[columns->answer]) : std::nullopt;
    if (!prompt || !answer) reject_line(file, number, "whole numbers of tokens", line);
    if (*prompt == 0 || *answer == 0) return;  // failed
    TraceRequest request{*prompt, *answer};
    if (columns->time && *columns->time < fields.size()) {
      request.arrival_s = parse_timestamp(fields[*columns->time]);
    }
    requests.push_back(std::move(request));
  });
  return requests;
}

std::vector<TraceRequest> parse_bench_trace(const std::string& text, const std::string& file) {
  std::vector<TraceRequest> requests;
  const nlohmann::json whole = parse_json<nlohmann::json>(text);
  if (whole.is_object()) {
    add_lists(whole, file, 1, requests);
    return requests;
  }
  for_each_line(text, [&](int number, std::string_view line) {
    const nlohmann::json record = parse_json<nlohmann::json>(line);
    if (!record.is_object()) reject_line(file, number, "a JSON object", line);
    add_lists(record, file, number, requests);
  });
  return requests;
}

std::vector<TraceRequest> parse_sglang_log(const std::string& text, const std::string& file) {
  std::vector<TraceRequest> requests;
  std::map<std::string, double> received;  // by request
  for_each_line(text, [&](int number, std::string_view line) {
    if (!line.starts_with('{')) return;
    const nlohmann::json record = parse_json<nlohmann::json>(line);
    if (!record.is_object()) return;
    const auto kind = record.find("event");
    if (kind == record.end() || !kind->is_string()) return;
    const std::string event = kind->get<std::string>();
    const auto stamp = record.find("timestamp");
    const double time = stamp != record.end() && stamp->is_string()
                            ? parse_timestamp(stamp->get<std::string>())
                            : kNoArrival;
    const auto rid = record.find("rid");
    const std::string name = rid == record.end() ? "" : rid->dump();
    if (event == "request.received") received[name] = time;
    if (event != "request.finished") return;
    const nlohmann::json::json_pointer meta("/out/meta_info");
    const nlohmann::json info = record.contains(meta) ? record[meta] : nlohmann::json();
    if (!info.is_object() || !info.contains("prompt_tokens") ||
        !info["prompt_tokens"].is_number_integer() || !info.contains("completion_tokens") ||
        !info["completion_tokens"].is_number_integer()) {
      reject_line(file, number, "out.meta_info with prompt_tokens and completion_tokens", line);
    }
    TraceRequest request{info["prompt_tokens"].get<std::int64_t>(),
                         info["completion_tokens"].get<std::int64_t>()};
    if (request.prompt_tokens == 0 || request.generated_tokens == 0) return;
    const auto arrival = received.find(name);
    request.arrival_s = arrival == received.end() ? time : arrival->second;
    requests.push_back(std::move(request));
  });
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  return requests;
}

std::vector<TraceRequest> parse_vllm_log(const std::string& text, const std::string& file) {
  std::vector<TraceRequest> all;
  std::map<std::string, std::size_t> index;  // by request
  for_each_line(text, [&](int, std::string_view line) {
    const std::optional<VllmMessage> message = vllm_message(line);
    if (!message) return;
    const auto [at, is_new] = index.emplace(message->request, all.size());
    if (is_new) all.push_back({.arrival_s = message->time_s});
    TraceRequest& request = all[at->second];
    if (message->is_answer) {
      request.generated_tokens += listed_tokens(line, "output_token_ids: ");
    } else {
      const std::int64_t tokens = listed_tokens(line, "prompt_token_ids: ");
      request.prompt_tokens = std::max(request.prompt_tokens, tokens);
    }
  });
  std::vector<TraceRequest> requests;
  std::copy_if(all.begin(), all.end(), std::back_inserter(requests), [](const TraceRequest& one) {
    return one.prompt_tokens > 0 && one.generated_tokens > 0;
  });
  if (requests.empty() && !all.empty()) {
    fail(ErrorKind::kFormat,
         "{}: expected requests with prompt_token_ids and output_token_ids (vllm serve "
         "--enable-log-requests --enable-log-outputs, VLLM_LOGGING_LEVEL=DEBUG), found none among "
         "{} requests",
         file, all.size());
  }
  return requests;
}

}  // namespace attnbench
