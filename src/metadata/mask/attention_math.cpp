// Resolution of masks and bias. The window comes first, because the form of ALiBi depends on
// whether there is one; ranges of multimodal prefixes only ever add keys to what mask and window
// leave.
#include "metadata/mask/attention_math.h"

#include <algorithm>

#include "core/error.h"

namespace attnbench {
namespace {

AlibiForm alibi_form(const AttentionSpec& attention, LinearAlibiRule rule,
                     const AttentionMath& math) {
  switch (attention.alibi) {
    case AlibiKind::kNone:
      return AlibiForm::kNone;
    case AlibiKind::kSqrt:
      return AlibiForm::kSqrt;
    case AlibiKind::kLinear:
      break;
  }
  if (rule == LinearAlibiRule::kContextRelative) return AlibiForm::kContextRelative;
  const bool windowed = math.window_left >= 0 || (!math.causal && math.window_right >= 0);
  return math.causal && !windowed ? AlibiForm::kKeyIndex : AlibiForm::kDistance;
}

WindowSubject window_subject(AttentionType type) {
  switch (type) {
    case AttentionType::kEncoder:
      return WindowSubject::kEncoder;
    case AttentionType::kEncoderOnly:
      return WindowSubject::kEncoderOnly;
    case AttentionType::kEncoderDecoder:
      return WindowSubject::kEncoderDecoder;
    default:
      return WindowSubject::kDecoder;
  }
}

bool is_symmetric(WindowSubject subject, EncoderWindowRule rule, bool symmetric_encoder) {
  switch (subject) {
    case WindowSubject::kDecoder:
    case WindowSubject::kEncoderDecoder:
      return false;
    case WindowSubject::kEncoderOnly:
      return true;
    case WindowSubject::kEncoder:
      return rule == EncoderWindowRule::kSymmetric || symmetric_encoder;
  }
  fail(ErrorKind::kInternal, "unknown window subject");
}

}  // namespace

WindowPair window_pair(std::optional<int64_t> sliding_window, WindowSubject subject,
                       EncoderWindowRule rule, bool symmetric_encoder) {
  if (!sliding_window) return {};
  if (*sliding_window < 1) {
    fail(ErrorKind::kConfig, "sliding_window: expected at least 1, got {}", *sliding_window);
  }
  const int64_t reach = *sliding_window - 1;
  return {reach, is_symmetric(subject, rule, symmetric_encoder) ? reach : 0};
}

WindowPair apply_causal(WindowPair window, bool causal) {
  if (causal) window.right = 0;
  return window;
}

AttentionMath resolve_attention_math(const Problem& problem, const KernelRules& rules) {
  const AttentionSpec& attention = problem.attention;
  AttentionMath math;
  math.softmax_scale = attention.scale;
  math.causal = attention.causal;
  math.logits_soft_cap = attention.logits_soft_cap;
  math.has_sinks = attention.sinks != SinksKind::kNone;
  const WindowPair window =
      apply_causal(window_pair(attention.sliding_window, window_subject(attention.type),
                               rules.window, attention.encoder_window == EncoderWindow::kSymmetric),
                   math.causal);
  math.window_left = window.left;
  math.window_right = window.right;
  math.chunk_size = attention.chunk_size.value_or(0);
  math.alibi = alibi_form(attention, rules.alibi, math);
  for (const auto& [request, ranges] : attention.mm_prefix_ranges) {
    const auto index = static_cast<std::size_t>(request);
    const std::vector<MmRange> effective =
        effective_mm_ranges(ranges, problem.batch.at(index).seq_len);
    if (effective.empty()) continue;
    math.mm_prefix_ranges.resize(problem.batch.size());
    math.mm_prefix_ranges[index] = effective;
  }
  return math;
}

KeyRange visible_range(const AttentionMath& math, std::int64_t position, std::int64_t seq_len) {
  KeyRange range{0, seq_len};
  if (math.window_left >= 0) range.begin = std::max<std::int64_t>(0, position - math.window_left);
  if (math.chunk_size > 0 && position > 0) {
    range.begin = std::max(range.begin, position - position % math.chunk_size);
  }
  if (math.window_right >= 0) range.end = std::min(seq_len, position + math.window_right + 1);
  range.end = std::max(range.begin, range.end);
  return range;
}

bool is_allowed(const AttentionMath& math, std::span<const MmRange> ranges, std::int64_t position,
                std::int64_t key, std::int64_t seq_len) {
  if (key < 0 || key >= seq_len) return false;
  const KeyRange visible = visible_range(math, position, seq_len);
  if (key >= visible.begin && key < visible.end) return true;
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range[0] <= position && position <= range[1] && range[0] <= key && key <= range[1];
  });
}

}  // namespace attnbench
