// Reading and writing safetensors files (contract.md section 5), safe against hostile headers.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

struct SafetensorsFile {
  std::vector<std::pair<std::string, Tensor>> tensors;  // in file order
  std::map<std::string, std::string> metadata;          // "__metadata__"

  const Tensor* find(const std::string& name) const;  // null when absent
};

/// Tensors of a dtype that the format has and Dtype lacks (BOOL, U16, ...) are checked and left
/// out. Errors: E-IO unreadable; E-FORMAT truncated, overlapping, overflowing offsets, holes or
/// trailing bytes, unknown dtype, duplicate names, header longer than the file, shape and byte
/// count that disagree.
SafetensorsFile read_safetensors(const std::filesystem::path& path);
/// The same for bytes in memory; `name` stands in messages.
SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

/// Written to a temporary file and renamed, so that a reader never sees half a file. Wider elements
/// come first, else in the order given, so every tensor is aligned. The tensors are borrowed.
/// Errors: E-IO.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, const Tensor*>>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace attnbench
