#include "scenario/case_name.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/sha256.h"

namespace attnbench {
namespace {

constexpr std::size_t kLongestName = 120;
constexpr std::size_t kKeptBytes = 100;

std::string value_text(const Value& value) {
  const std::string json = to_json_text(value);
  return value.is_string() ? json.substr(1, json.size() - 2) : json;
}

std::string shortened(const std::string& name) {
  if (name.size() <= kLongestName) return name;
  std::size_t end = kKeptBytes;
  while (end > 0 && (name[end] & 0xC0) == 0x80) --end;
  return fmt::format("{}-{}", name.substr(0, end), sha256_hex(name).substr(0, 8));
}

}  // namespace

std::string CaseNamer::name(std::string_view label,
                            const std::vector<std::pair<std::string, const Value*>>& swept) {
  std::string full(label);
  for (const auto& [key, value] : swept) {
    if (key != "batch") full += fmt::format(",{}={}", key, value_text(*value));
  }
  std::replace(full.begin(), full.end(), '/', '_');
  const std::string name = shortened(full);
  const int uses = ++uses_[name];
  return uses == 1 ? name : fmt::format("{}#{}", name, uses);
}

}  // namespace attnbench
