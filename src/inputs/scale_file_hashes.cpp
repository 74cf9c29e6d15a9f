#include "inputs/scale_file_hashes.h"

#include <filesystem>

#include "core/problem_fields.h"
#include "core/sha256.h"
#include "inputs/scale_text.h"

namespace attnbench {

std::map<std::string, std::string> ScaleFileHashes::of(const Problem& problem) {
  std::map<std::string, std::string> hashes;
  for (const std::string_view key : kScaleFileKeys) {
    const Value value = find_field(key)->get(problem);
    if (!value.is_string()) continue;
    std::error_code error;
    if (!std::filesystem::is_regular_file(value.text, error)) continue;
    const auto [entry, is_new] = by_path_.try_emplace(value.text);
    if (is_new) entry->second = sha256_hex(read_scale_text(value.text, key));
    hashes.emplace(key, entry->second);
  }
  return hashes;
}

}  // namespace attnbench
