// Writes the tensors of one result as a safetensors file (contract.md section 5).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "bench/tensor_list.h"
#include "core/result/result.h"
#include "reference/attention.h"

namespace attnbench {

/// `reference_output`, `reference_lse` and `checked_rows` of `reference`: all T rows, NaN where not
/// checked.
void add_reference_tensors(std::int64_t num_tokens, const ReferenceOutput& reference,
                           TensorList& tensors);

/// The id with '/' as "__", and ".safetensors".
std::string tensor_file_name(const std::string& id);

/// Writes the tensors with the metadata of `result`. Creates the folder when it is missing.
/// Errors: E-IO.
void save_tensors(const std::filesystem::path& folder, const Result& result,
                  const TensorList& tensors);

}  // namespace attnbench
