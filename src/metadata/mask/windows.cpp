#include "metadata/mask/windows.h"

#include "core/error.h"

namespace attnbench {
namespace {

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

}  // namespace attnbench
