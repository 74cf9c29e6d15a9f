// Writes the tensors of one result as a safetensors file (contract.md section 5).
#pragma once

#include <filesystem>
#include <string>

#include "backends/backend.h"
#include "core/result.h"
#include "reference/attention.h"

namespace attnbench {

struct SavedCase {
  const Problem* problem = nullptr;
  const BackendInputs* inputs = nullptr;
  const PipelineOutput* output = nullptr;
  const ReferenceOutput* reference = nullptr;  // null without validation
};

/// The id with '/' as "__", and ".safetensors".
std::string tensor_file_name(const std::string& id);

/// Creates the folder when it is missing. Errors: E-IO.
void save_tensors(const std::filesystem::path& folder, const Result& result,
                  const SavedCase& saved);

}  // namespace attnbench
