// The window pair behind a sliding_window option (semantics §3.3).
#pragma once

#include <cstdint>
#include <optional>

#include "metadata/mask/kernel_rules.h"

namespace attnbench {

/// Attention as §3.3 tells it apart.
enum class WindowSubject { kDecoder, kEncoderDecoder, kEncoderOnly, kEncoder };

/// Key j is allowed for position p iff p - left <= j <= p + right; -1 = unlimited.
struct WindowPair {
  int64_t left = -1;
  int64_t right = -1;
  bool operator==(const WindowPair&) const = default;
};

/// sliding_window counts the visible keys including the token itself; nullopt = no window, < 1 is
/// E-CONFIG. With symmetric_encoder an ENCODER window is symmetric whatever the rule.
WindowPair window_pair(std::optional<int64_t> sliding_window, WindowSubject subject,
                       EncoderWindowRule rule, bool symmetric_encoder = false);

/// The pair with the right side closed when causal.
WindowPair apply_causal(WindowPair window, bool causal);

}  // namespace attnbench
