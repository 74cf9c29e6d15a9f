#include "scenario/batch/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/parsing.h"
#include "metadata/batch.h"
#include "scenario/batch/trace_formats.h"
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

bool has_usual_lengths(const TraceRequest& request) {
  return request.prompt_tokens >= 1 && request.prompt_tokens <= kMaxLength &&
         request.generated_tokens >= 0 && request.generated_tokens <= kMaxLength;
}

void check_lengths(const Line& line, const TraceRequest& request) {
  if (!has_usual_lengths(request)) {
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
  return {*prompt, *generated, {}, parse_timestamp(line.text.substr(0, first))};
}

TraceRequest parse_mooncake_line(const Line& line) {
  constexpr std::string_view kExpected =
      "a JSON object with integers input_length, output_length and a list of integers hash_ids";
  const auto json = parse_json<nlohmann::json>(line.text);
  if (!json.is_object()) line.reject(kExpected);
  const auto integer = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) line.reject(kExpected);
    return found->template get<std::int64_t>();
  };
  TraceRequest request{integer("input_length"), integer("output_length")};
  constexpr double kMillisecondsPerSecond = 1000;
  if (const auto time = json.find("timestamp"); time != json.end() && time->is_number()) {
    request.arrival_s = time->get<double>() / kMillisecondsPerSecond;
  }
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) line.reject(kExpected);
  for (const auto& id : *ids) {
    if (!id.is_number_integer()) line.reject(kExpected);
    request.prefix_blocks.push_back(id.get<std::int64_t>());
  }
  return request;
}

struct Running {
  const TraceRequest* request = nullptr;
  std::int64_t computed = 0;   // tokens in the cache
  std::int64_t generated = 0;  // tokens sampled
  std::int64_t scheduled = 0;  // tokens of the current step

  bool prompt_done() const { return computed >= request->prompt_tokens; }
  bool finished() const { return prompt_done() && generated >= request->generated_tokens; }
};

/// When the requests come, one after the other, from the line on that is replayed first. Time
/// begins with the first of them.
class ArrivalClock {
 public:
  /// `trace` is in the order of its arrivals where those count.
  ArrivalClock(const std::vector<TraceRequest>& trace, const ReplayOptions& options,
               std::size_t first_line)
      : trace_(trace), options_(options), line_(first_line), draw_(options.seed) {
    if (options.arrivals != Arrivals::kTrace) return;
    const double span = trace.back().arrival_s - trace.front().arrival_s;
    const double own_gap = span / static_cast<double>(std::max<std::size_t>(trace.size() - 1, 1));
    if (options.rate > 0) stretch_ = 1 / (options.rate * own_gap);
    repeat_gap_s_ = own_gap;
  }

  /// Seconds until the next one has come; 0 at the first.
  double next_s() const { return next_s_; }

  void pass() {
    if (options_.arrivals == Arrivals::kPoisson) {
      // A number in (0, 1] of 53 bits.
      const double share = static_cast<double>((splitmix64(++draw_) >> 11) + 1) * 0x1p-53;
      next_s_ += -std::log(share) / options_.rate;
    } else if (options_.arrivals == Arrivals::kTrace) {
      const std::size_t next = (line_ + 1) % trace_.size();
      const double gap =
          next == 0 ? repeat_gap_s_ : trace_[next].arrival_s - trace_[line_].arrival_s;
      next_s_ += gap * stretch_;
      line_ = next;
    }
  }

 private:
  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  std::size_t line_;
  std::uint64_t draw_;
  double stretch_ = 1;
  double repeat_gap_s_ = 0;
  double next_s_ = 0;
};

class Scheduler {
 public:
  Scheduler(const std::vector<TraceRequest>& trace, const ReplayOptions& options)
      : trace_(trace),
        options_(options),
        next_line_(splitmix64(options.seed) % trace.size()),
        arrivals_(trace, options, next_line_) {
    admit_those_who_came();
  }

  void schedule() {
    std::int64_t budget = options_.max_batched_tokens;
    for (Running& run : running_) {
      run.scheduled = run.prompt_done() ? 1 : 0;
      budget -= run.scheduled;
    }
    for (Running& run : running_) {
      if (run.prompt_done()) continue;
      const std::int64_t left = run.request->prompt_tokens - run.computed;
      run.scheduled = std::clamp<std::int64_t>(budget, 0, left);
      budget -= run.scheduled;
    }
  }

  void finish_step() {
    for (Running& run : running_) {
      run.computed += run.scheduled;
      if (run.scheduled > 0 && run.prompt_done()) ++run.generated;
    }
    // Why erase and append: a new request stands behind those admitted before it.
    std::erase_if(running_, [](const Running& run) { return run.finished(); });
    constexpr double kMillisecondsPerSecond = 1000;
    clock_s_ += options_.step_ms / kMillisecondsPerSecond;
    admit_those_who_came();
  }

  /// The requests that got tokens, as §1.4 orders them.
  std::vector<Running> ordered() const {
    std::vector<Running> active;
    std::vector<std::int32_t> scheduled, computed, prompt_lens;
    for (const Running& run : running_) {
      if (run.scheduled == 0) continue;
      active.push_back(run);
      scheduled.push_back(static_cast<std::int32_t>(run.scheduled));
      computed.push_back(static_cast<std::int32_t>(run.computed));
      prompt_lens.push_back(static_cast<std::int32_t>(run.request->prompt_tokens));
    }
    std::vector<Running> result;
    for (int index : reorder_batch(scheduled, computed, prompt_lens, 1)) {
      result.push_back(active[static_cast<std::size_t>(index)]);
    }
    return result;
  }

 private:
  void admit_those_who_came() {
    if (running_.empty()) clock_s_ = std::max(clock_s_, arrivals_.next_s());
    while (static_cast<std::int64_t>(running_.size()) < options_.requests &&
           arrivals_.next_s() <= clock_s_) {
      running_.push_back(admit());
    }
  }

  Running admit() {
    const TraceRequest& request = trace_[next_line_];
    next_line_ = (next_line_ + 1) % trace_.size();
    arrivals_.pass();
    return {.request = &request};
  }

  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  std::size_t next_line_;
  ArrivalClock arrivals_;
  double clock_s_ = 0;
  std::vector<Running> running_;
};

/// By their arrivals, which all must be known and not all the same.
std::vector<TraceRequest> in_order_of_arrival(std::vector<TraceRequest> trace) {
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace[i].arrival_s != kNoArrival) continue;
    fail(ErrorKind::kConfig,
         "arrivals: trace: request {} of the trace has no time of arrival; expected one for each, "
         "or arrivals: poisson",
         i + 1);
  }
  std::stable_sort(trace.begin(), trace.end(),
                   [](const auto& a, const auto& b) { return a.arrival_s < b.arrival_s; });
  if (!(trace.front().arrival_s < trace.back().arrival_s)) {
    fail(ErrorKind::kConfig, "arrivals: trace: all requests of the trace come at the same time");
  }
  return trace;
}

std::int64_t shared_prefix(const std::vector<Running>& batch) {
  if (batch.size() < 2) return 0;
  const TraceRequest& first = *batch.front().request;
  std::size_t blocks = first.prefix_blocks.size();
  std::int64_t shortest = first.prompt_tokens;
  for (const Running& run : batch) {
    const auto& ids = run.request->prefix_blocks;
    const auto limit = std::min(blocks, ids.size());
    const auto end = first.prefix_blocks.begin() + static_cast<std::ptrdiff_t>(limit);
    blocks = static_cast<std::size_t>(
        std::mismatch(first.prefix_blocks.begin(), end, ids.begin()).first -
        first.prefix_blocks.begin());
    shortest = std::min(shortest, run.request->prompt_tokens);
  }
  // Why the minimum: the last block of a prompt is usually not full.
  return std::min(static_cast<std::int64_t>(blocks) * kPrefixBlockTokens, shortest);
}

}  // namespace

namespace {

/// The formats that are read line by line, with strict headers.
std::vector<TraceRequest> parse_lines(const std::string& text, const std::string& file,
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
  return requests;
}

std::vector<TraceRequest> parse_any(const std::string& text, const std::string& file,
                                    TraceFormat format) {
  switch (format) {
    case TraceFormat::kAzureLlm:
    case TraceFormat::kMooncake:
      return parse_lines(text, file, format);
    case TraceFormat::kBurstGpt:
    case TraceFormat::kCsv:
      return parse_csv_trace(text, file);
    case TraceFormat::kVllmBench:
    case TraceFormat::kSglangBench:
      return parse_bench_trace(text, file);
    case TraceFormat::kSglangLog:
      return parse_sglang_log(text, file);
    case TraceFormat::kVllmLog:
      return parse_vllm_log(text, file);
  }
  return {};
}

}  // namespace

std::vector<TraceRequest> parse_trace(const std::string& text, const std::string& file,
                                      TraceFormat format) {
  std::vector<TraceRequest> requests = parse_any(text, file, format);
  if (requests.empty()) {
    fail(ErrorKind::kFormat, "{}:1: expected a trace of requests, found none", file);
  }
  for (const TraceRequest& request : requests) {
    if (has_usual_lengths(request)) continue;
    fail(ErrorKind::kFormat,
         "{0}: expected 1 to {1} prompt tokens and 0 to {1} generated ones, found {2} and {3}",
         file, kMaxLength, request.prompt_tokens, request.generated_tokens);
  }
  return requests;
}

std::span<const EnumRow<TraceFormat>> enum_rows(TraceFormat) {
  using enum TraceFormat;
  static constexpr auto kRows = every_value<EnumRow<TraceFormat>>({
      {kAzureLlm, "azure_llm", "CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens"},
      {kMooncake, "mooncake", "JSON lines with timestamp, input_length, output_length, hash_ids"},
      {kBurstGpt, "burstgpt", "CSV of BurstGPT: Timestamp, Request tokens, Response tokens"},
      {kCsv, "csv", "CSV whose header names columns of tokens, as exports of ShareGPT have them"},
      {kVllmBench, "vllm_bench", "JSON of vllm bench serve --save-result --save-detailed"},
      {kSglangBench, "sglang_bench", "JSON lines of sglang.bench_serving --output-details"},
      {kSglangLog, "sglang_log", "log of SGLang's --log-requests-format json"},
      {kVllmLog, "vllm_log", "log of vLLM's --enable-log-requests --enable-log-outputs"},
  });
  return kRows;
}

std::span<const EnumRow<Arrivals>> enum_rows(Arrivals) {
  using enum Arrivals;
  static constexpr auto kRows = every_value<EnumRow<Arrivals>>({
      {kClosed, "closed", "a request comes as soon as another has finished"},
      {kTrace, "trace", "at the times of the trace"},
      {kPoisson, "poisson", "at random, `rate` a second on average"},
  });
  return kRows;
}

std::vector<TraceRequest> read_trace(const std::filesystem::path& path, TraceFormat format) {
  return parse_trace(read_text_file(path, kMaxTraceBytes), path.string(), format);
}

std::uint64_t splitmix64(std::uint64_t seed) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

namespace {

/// A scheduler with what it refers to, at one of its steps.
class Replay {
 public:
  Replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options)
      : options_(options),
        sorted_(options.arrivals == Arrivals::kTrace ? in_order_of_arrival(trace)
                                                     : std::vector<TraceRequest>{}),
        scheduler_(sorted_.empty() ? trace : sorted_, options_) {
    scheduler_.schedule();
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  ReplayedBatch at(std::int64_t step) {
    for (; step_ < step; ++step_) {
      scheduler_.finish_step();
      scheduler_.schedule();
    }
    const std::vector<Running> ordered = scheduler_.ordered();
    ReplayedBatch result;
    for (const Running& run : ordered) {
      Request request{run.scheduled, run.computed + run.scheduled};
      // A last token of a prompt looks like a decode.
      if (run.scheduled == 1 && run.computed > 0 && !run.prompt_done()) request.prefilling = true;
      result.batch.push_back(request);
    }
    result.shared_prefix_tokens = shared_prefix(ordered);
    return result;
  }

 private:
  const ReplayOptions options_;
  const std::vector<TraceRequest> sorted_;
  Scheduler scheduler_;
  std::int64_t step_ = 1;
};

}  // namespace

TraceReplay start_replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  return [replay = std::make_shared<Replay>(trace, options)](std::int64_t step) {
    return replay->at(step);
  };
}

ReplayedBatch replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  return Replay(trace, options).at(options.step);
}

}  // namespace attnbench
