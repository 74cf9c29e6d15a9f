#include "scenario/batch/batch_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr std::int64_t kKilo = 1024;
constexpr std::string_view kGrammar = "[count]q<n>[k][s<n>[k]], joined by '_'";

/// Reads one segment from left to right; each step names what it stumbled over.
class SegmentParser {
 public:
  SegmentParser(const std::string& spec, std::string_view segment, bool cross)
      : spec_(spec), segment_(segment), cross_(cross) {}

  struct Segment {
    std::int64_t count = 1;
    Request request;
  };

  Segment parse() {
    Segment result;
    if (segment_.empty()) reject("an empty segment");
    if (const auto count = digits()) {
      if (*count == 0) reject("count 0");
      if (*count > kMaxRequests) reject_size(fmt::format("more than {} requests", kMaxRequests));
      result.count = *count;
    }
    if (!take('q')) reject_here("'q'");
    result.request.query_len = length("q");
    if (result.request.query_len == 0) reject("query length 0");
    result.request.seq_len = result.request.query_len;
    if (take('s')) result.request.seq_len = length("s");
    if (at_ != segment_.size()) reject_here("the end of the segment");
    if (!cross_ && result.request.seq_len < result.request.query_len) {
      reject("a KV length below the query length");
    }
    return result;
  }

 private:
  [[noreturn]] void reject(std::string_view found) const {
    fail(ErrorKind::kConfig, "expected a batch of segments {}, found {} in segment '{}' of '{}'",
         kGrammar, found, segment_.substr(0, 60), std::string_view(spec_).substr(0, 80));
  }
  [[noreturn]] void reject_size(std::string_view found) const {
    fail(ErrorKind::kCapacity,
         "expected a batch of at most {} requests and {} tokens, found {} in segment '{}'",
         kMaxRequests, kMaxTokens, found, segment_.substr(0, 60));
  }
  [[noreturn]] void reject_here(std::string_view expected) const {
    const std::string found = at_ < segment_.size()
                                  ? fmt::format("'{}'", printable(segment_.substr(at_, 12)))
                                  : std::string("its end");
    reject(fmt::format("{} instead of {}", found, expected));
  }
  static std::string printable(std::string_view text) {
    std::string result;
    for (char c : text) result += c >= ' ' && c < 127 ? c : '?';
    return result;
  }

  bool take(char c) {
    if (at_ == segment_.size() || segment_[at_] != c) return false;
    ++at_;
    return true;
  }

  /// A run of decimal digits, or nothing.
  std::optional<std::int64_t> digits() {
    const std::size_t begin = at_;
    std::int64_t value = 0;
    while (at_ < segment_.size() && segment_[at_] >= '0' && segment_[at_] <= '9') {
      value = value * 10 + (segment_[at_++] - '0');
      if (value > kMaxTokens) reject_size(fmt::format("a number above {}", kMaxTokens));
    }
    if (at_ == begin) return std::nullopt;
    return value;
  }

  /// <n>[k] after `letter`.
  std::int64_t length(std::string_view letter) {
    const std::optional<std::int64_t> value = digits();
    if (!value) reject_here(fmt::format("a number after '{}'", letter));
    const std::int64_t tokens = take('k') ? *value * kKilo : *value;
    if (tokens > kMaxTokens) reject_size(fmt::format("more than {} tokens", kMaxTokens));
    return tokens;
  }

  const std::string& spec_;
  std::string_view segment_;
  bool cross_;
  std::size_t at_ = 0;
};

/// 4096 -> "4k", 1000 -> "1000", 0 -> "0".
std::string token_count_text(std::int64_t tokens) {
  return tokens > 0 && tokens % kKilo == 0 ? fmt::format("{}k", tokens / kKilo)
                                           : fmt::format("{}", tokens);
}

}  // namespace

std::vector<Request> parse_batch_spec(const std::string& spec, bool cross) {
  std::vector<Request> batch;
  std::int64_t query_tokens = 0;
  std::int64_t key_tokens = 0;
  for (std::size_t begin = 0; begin <= spec.size();) {
    const std::size_t end = std::min(spec.find('_', begin), spec.size());
    const std::string_view text = std::string_view(spec).substr(begin, end - begin);
    const auto [count, request] = SegmentParser(spec, text, cross).parse();
    query_tokens += count * request.query_len;
    key_tokens += count * request.seq_len;
    const auto requests = static_cast<std::int64_t>(batch.size()) + count;
    if (requests > kMaxRequests || query_tokens > kMaxTokens || key_tokens > kMaxTokens) {
      fail(ErrorKind::kCapacity,
           "expected a batch of at most {} requests and {} tokens, found more from segment '{}' on",
           kMaxRequests, kMaxTokens, text.substr(0, 60));
    }
    batch.insert(batch.end(), static_cast<std::size_t>(count), request);
    begin = end + 1;
  }
  return batch;
}

std::string canonical_batch_spec(const std::vector<Request>& batch) {
  std::string spec;
  for (std::size_t i = 0; i < batch.size();) {
    std::size_t end = i + 1;
    while (end < batch.size() && batch[end] == batch[i]) ++end;
    if (!spec.empty()) spec += '_';
    if (end - i > 1) spec += std::to_string(end - i);
    spec += fmt::format("q{}", token_count_text(batch[i].query_len));
    if (batch[i].seq_len != batch[i].query_len || batch[i].query_len == 0) {
      spec += fmt::format("s{}", token_count_text(batch[i].seq_len));
    }
    i = end;
  }
  return spec;
}

std::vector<Request> image_requests(const MmEncoderSpec& spec) {
  std::vector<Request> batch;
  for (const auto& [height, width] : *spec.images) {
    const std::int64_t rows = height / spec.patch_size;
    const std::int64_t columns = width / spec.patch_size;
    if (rows == 0 || columns == 0) {
      fail(ErrorKind::kValue, "expected images of at least one patch of {0} x {0}, found {1} x {2}",
           spec.patch_size, height, width);
    }
    const std::int64_t window = spec.window ? *spec.window : std::max(rows, columns);
    const auto sequences = static_cast<std::int64_t>(batch.size()) +
                           ceil_div(rows, window) * ceil_div(columns, window);
    if (sequences > kMaxRequests) {
      fail(ErrorKind::kCapacity, "expected at most {} sequences, found {}", kMaxRequests,
           sequences);
    }
    for (std::int64_t top = 0; top < rows; top += window) {
      for (std::int64_t left = 0; left < columns; left += window) {
        const std::int64_t patches =
            std::min(window, rows - top) * std::min(window, columns - left);
        batch.push_back({patches, patches});
      }
    }
  }
  return batch;
}

}  // namespace attnbench
