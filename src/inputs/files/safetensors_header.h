// The JSON header of a safetensors file: parsed and checked before a byte of data is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attnbench {

/// Bytes of the length field that a file starts with.
inline constexpr std::uint64_t kSafetensorsPrefixBytes = 8;
/// Longer headers are refused, as the format's own library does.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // one of the format's names, not necessarily a Dtype of ours
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in header order
  std::map<std::string, std::string> metadata;
};

/// Checks the length field of a file of `file_bytes` bytes and returns the header's length.
/// Errors: E-FORMAT.
std::uint64_t checked_header_length(const std::byte* prefix,  // [8], little endian
                                    std::uint64_t file_bytes, const std::string& file);

/// `text` is the JSON; `data_bytes` what follows it in the file. On return the entries' byte ranges
/// cover [0, data_bytes) without gap or overlap and agree with dtype and shape. Errors: E-FORMAT
/// naming `file`.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           const std::string& file);

}  // namespace attnbench
