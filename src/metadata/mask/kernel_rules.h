// What kernels decide differently where the definitions leave a choice: each backend states its
// rules as a value, and masks, bias, caches, the reference and the FLOP count follow them.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace attnbench {

/// The right side of a window around an ENCODER's rows (semantics §3.3). Decoder and cross windows
/// reach back only and those of ENCODER_ONLY to both sides, whoever computes them.
enum class EncoderWindowRule {
  kSymmetric,
  kOneSided,  // nothing after the row, unless attention.encoder_window is symmetric
};
/// The bias of attention.alibi "linear" (semantics §3.4).
enum class LinearAlibiRule {
  kByMask,           // by key index when causal without a window, else by distance
  kContextRelative,  // by key index minus context_len
};

/// The default is what the definitions say with nothing added: the reference and users' backends
/// compute that.
struct KernelRules {
  EncoderWindowRule window = EncoderWindowRule::kSymmetric;
  LinearAlibiRule alibi = LinearAlibiRule::kByMask;
  /// kv_cache.e5m2_as_e4m3 is honoured: an fp8_e5m2 cache then holds e4m3 codes (semantics §5.1).
  bool honours_e5m2_as_e4m3 = false;
  /// Values of a cache with per-tensor fp8 scales are rounded to attention.dtype once they are
  /// dequantised (semantics §4.4, mode 1).
  bool rounds_dequantised = false;
  /// Over an e4m3 cache the query is e4m3 too, with kv_cache.q_scale.
  bool quantises_query = false;
  /// Reads queries, keys and values that were quantised and dequantised beforehand; a kernel does
  /// that itself.
  bool reads_dequantised = false;

  bool operator==(const KernelRules&) const = default;
};

/// The words that saved tensors state rules in.
inline constexpr std::array<std::pair<EncoderWindowRule, const char*>, 2> kEncoderWindowRuleNames{
    {{EncoderWindowRule::kSymmetric, "symmetric"}, {EncoderWindowRule::kOneSided, "one_sided"}}};
inline constexpr std::array<std::pair<LinearAlibiRule, const char*>, 2> kLinearAlibiRuleNames{
    {{LinearAlibiRule::kByMask, "by_mask"},
     {LinearAlibiRule::kContextRelative, "context_relative"}}};
/// Every field that is true or false, under its name.
inline constexpr std::array<std::pair<const char*, bool KernelRules::*>, 4> kKernelRuleSwitches{
    {{"honours_e5m2_as_e4m3", &KernelRules::honours_e5m2_as_e4m3},
     {"rounds_dequantised", &KernelRules::rounds_dequantised},
     {"quantises_query", &KernelRules::quantises_query},
     {"reads_dequantised", &KernelRules::reads_dequantised}}};

/// The value of that name in one of the tables above, or nothing.
template <typename Value, std::size_t N>
std::optional<Value> rule_from(const std::array<std::pair<Value, const char*>, N>& names,
                               std::string_view name) {
  for (const auto& [value, known] : names) {
    if (name == known) return value;
  }
  return std::nullopt;
}
template <typename Value, std::size_t N>
const char* rule_name(const std::array<std::pair<Value, const char*>, N>& names, Value value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "";
}

}  // namespace attnbench
