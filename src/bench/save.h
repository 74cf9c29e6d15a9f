// Writes the tensors of one result as a safetensors file (contract.md section 5), so that a failure
// can be looked at, and a second implementation can judge the same numbers.
//
// The file has to be understood without this program: its metadata hold the resolved problem as
// JSON, the id, the backend and, where the backend states them, the rules by which it differs from
// others (windows, slopes, what its cache stores). Names and meanings are a contract with whoever
// reads such files, scripts/second_opinion.py among them: a tensor is added, and none is renamed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "backends/backend.h"
#include "bench/tensor_list.h"
#include "core/result/result.h"
#include "reference/attention.h"

namespace attnbench {

/// `reference_output`, `reference_lse` and `checked_rows` of `reference`, in the shapes of output
/// and LSE: all T rows, with NaN in those that were not checked, so that the rows of both tensors
/// are found by the same index.
void add_reference_tensors(std::int64_t num_tokens, const ReferenceOutput& reference,
                           TensorList& tensors);

/// The id with '/' as "__", and ".safetensors": the files of all results lie in one folder.
std::string tensor_file_name(const std::string& id);

/// The rules and the cache layout of a backend as one JSON object: `window` and `alibi` as the
/// words of kernel_rules.h, its switches as true or false, and `cache_layout` FA, IX, TR or null.
std::string kernel_rules_json(const KernelRules& rules, std::optional<CacheLayoutKind> layout);

/// Writes the tensors with the metadata of `result`, and with `kernel_rules` where the backend
/// states them. Creates the folder when it is missing. Errors: E-IO.
void save_tensors(const std::filesystem::path& folder, const Result& result, const Backend& backend,
                  const TensorList& tensors);

}  // namespace attnbench
