// Reading and writing safetensors files (contract.md section 5), safe against hostile headers.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "inputs/files/safetensors_header.h"

namespace attnbench {

struct SafetensorsFile {
  std::vector<std::pair<std::string, Tensor>> tensors;  // in file order
  std::map<std::string, std::string> metadata;          // "__metadata__"

  const Tensor* find(const std::string& name) const;  // null when absent
};

/// Tensors of a dtype that the format has and Dtype has not (BOOL, U16, ...) are checked and left
/// out. Errors: E-IO unreadable; E-FORMAT truncated, overlapping, overflowing offsets, holes or
/// trailing bytes, unknown dtype, duplicate names, header longer than the file, shape and byte
/// count that disagree.
SafetensorsFile read_safetensors(const std::filesystem::path& path);
/// The same for bytes in memory; `name` is for messages.
SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

/// A file whose tensors are read one at a time: only the header is held. The file is opened for
/// each read, so that any number of readers may exist.
class SafetensorsReader {
 public:
  /// Errors: as read_safetensors.
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsEntry* find(const std::string& tensor) const;  // null when absent
  /// Errors: E-IO, also when the file is not the one whose header was read; E-DTYPE for a dtype
  /// that Dtype has not.
  Tensor read(const SafetensorsEntry& entry) const;
  /// Hands the tensor's bytes to `take` in pieces of at most 4 MiB, whatever its dtype. Errors:
  /// E-IO as read(), and what `take` throws.
  void stream(const SafetensorsEntry& entry,
              const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  std::string name_;
  SafetensorsHeader header_;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t data_start_ = 0;
};

/// A file that appears whole or not at all. Wider elements come first, else in the order given, so
/// every tensor is aligned. The tensors are borrowed. Errors: E-IO.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, const Tensor*>>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace attnbench
