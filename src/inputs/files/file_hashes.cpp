// Hashes of the files that a problem names. Only regular files are hashed; of a path that names
// nothing, a folder or a pipe there is no hash, and what is wrong with it is for the reader of the
// file to say.
#include "inputs/files/file_hashes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "core/problem/fields.h"
#include "core/sha256.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

[[noreturn]] void fail_to_read(const std::string& path) {
  fail(ErrorKind::kIo, "cannot read '{}': {}", path, std::strerror(errno));
}

/// Why mapped: a file of tensors may be larger than what is left of the memory.
std::string hash_of_file(const std::string& path) {
  const std::uintmax_t size = std::filesystem::file_size(path);
  if (size == 0) return sha256_hex("");
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_to_read(path);
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (bytes == MAP_FAILED) fail_to_read(path);
  std::string hash = sha256_hex({static_cast<const char*>(bytes), size});
  munmap(bytes, size);
  return hash;
}

}  // namespace

std::map<std::string, std::string> FileHashes::of(const Problem& problem) {
  std::map<std::string, std::string> hashes;
  const auto add = [&](std::string_view key, const auto& hash_of) {
    const Value value = find_field(key)->get(problem);
    std::error_code error;
    if (!value.is_string() || !std::filesystem::is_regular_file(value.text, error)) return;
    const auto [entry, is_new] = by_path_.try_emplace(value.text);
    if (is_new) entry->second = hash_of(value.text);
    hashes.emplace(key, entry->second);
  };
  for (const std::string_view key : kScaleFileKeys) {
    add(key, [&](const std::string& path) { return sha256_hex(read_scale_text(path, key)); });
  }
  add(kInputFileKey, hash_of_file);
  return hashes;
}

}  // namespace attnbench
