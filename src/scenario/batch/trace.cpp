#include "scenario/batch/trace.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "metadata/batch.h"
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

struct Running {
  const TraceRequest* request = nullptr;
  std::int64_t computed = 0;   // tokens in the cache
  std::int64_t generated = 0;  // tokens sampled
  std::int64_t scheduled = 0;  // tokens of the current step

  bool prompt_done() const { return computed >= request->prompt_tokens; }
  bool finished() const { return prompt_done() && generated >= request->generated_tokens; }
};

class Scheduler {
 public:
  Scheduler(const std::vector<TraceRequest>& trace, const ReplayOptions& options)
      : trace_(trace), options_(options), next_line_(splitmix64(options.seed) % trace.size()) {
    for (std::int64_t i = 0; i < options.requests; ++i) running_.push_back(admit());
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
    while (static_cast<std::int64_t>(running_.size()) < options_.requests) {
      running_.push_back(admit());
    }
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
  Running admit() {
    const TraceRequest& request = trace_[next_line_];
    next_line_ = (next_line_ + 1) % trace_.size();
    return {.request = &request};
  }

  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  std::size_t next_line_;
  std::vector<Running> running_;
};

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

std::uint64_t splitmix64(std::uint64_t seed) {
  std::uint64_t z = seed + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

ReplayedBatch replay_trace(const std::vector<TraceRequest>& trace, const ReplayOptions& options) {
  Scheduler scheduler(trace, options);
  scheduler.schedule();
  for (std::int64_t step = 1; step < options.step; ++step) {
    scheduler.finish_step();
    scheduler.schedule();
  }
  const std::vector<Running> ordered = scheduler.ordered();
  ReplayedBatch result;
  for (const Running& run : ordered) {
    result.batch.push_back({run.scheduled, run.computed + run.scheduled});
  }
  result.shared_prefix_tokens = shared_prefix(ordered);
  return result;
}

}  // namespace attnbench
