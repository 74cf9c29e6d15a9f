#include "measure/cpu_cache.h"

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <set>
#include <system_error>
#include <tuple>

namespace attnbench {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// A cache is told by its level and the cores that share it.
using CacheId = std::tuple<std::string, std::string>;

std::size_t add_caches_of(const fs::path& cpu, std::set<CacheId>& seen) {
  std::size_t bytes = 0;
  std::error_code ignored;
  for (const fs::directory_entry& index : fs::directory_iterator(cpu / "cache", ignored)) {
    const std::string level = first_line(index.path() / "level");
    const std::string type = first_line(index.path() / "type");
    if (level.empty() || level == "1" || type == "Instruction") continue;
    const auto size = parse_cache_size(first_line(index.path() / "size"));
    if (!size || !seen.emplace(level, first_line(index.path() / "shared_cpu_list")).second)
      continue;
    bytes += *size;
  }
  return bytes;
}

bool is_cpu_folder(const std::string& name) {
  return name.size() > 3 && name.starts_with("cpu") &&
         name.find_first_not_of("0123456789", 3) == std::string::npos;
}

}  // namespace

std::optional<std::size_t> parse_cache_size(const std::string& text) {
  std::size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value == 0) return std::nullopt;
  const std::string unit(rest, end);
  if (unit.empty()) return value;
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  if (unit == "G") return value << 30;
  return std::nullopt;
}

std::optional<std::size_t> total_cache_bytes(const fs::path& sysfs) {
  std::size_t bytes = 0;
  std::set<CacheId> seen;
  std::error_code ignored;
  for (const fs::directory_entry& cpu : fs::directory_iterator(sysfs, ignored)) {
    if (is_cpu_folder(cpu.path().filename())) bytes += add_caches_of(cpu.path(), seen);
  }
  if (bytes > 0) return bytes;
  const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (last_level > 0) return static_cast<std::size_t>(last_level);
  return std::nullopt;
}

}  // namespace attnbench
