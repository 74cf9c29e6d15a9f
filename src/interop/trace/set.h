// A folder of FlashInfer-Trace: definitions/, workloads/, solutions/ and blob/, as flashinfer-bench
// reads it.
//
// A definition that is no attention (a GEMM, a sampler) is left out, and so is what belongs to it:
// a trace set is that of a whole model. What is left out of the rest is told, since somebody will
// look for it in the results.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "interop/trace/record.h"
#include "interop/trace/scenario.h"

namespace attnbench {

struct ImportedTraces {
  std::vector<std::filesystem::path> scenarios;  // files
  TraceNames names;
  std::vector<std::string> notices;
};

/// Class of a solution in the Python module attnbench.solutions: its name with every character that
/// no Python name has as '_'.
std::string solution_class(const std::string& name);
/// The backend: "python:attnbench.solutions:CLASS".
std::string solution_backend(const std::string& name);

/// Scenarios of one definition in `folder`, one for each of the workloads, which belong to it or do
/// not say to what; without any, one whose lengths are `batch` as FlashInfer's own dumps have none.
/// `taken` are names of scenarios that others have. Errors: those of writing; where not one
/// workload can be taken over, what is wrong with the first, which is otherwise a notice.
ImportedTraces import_definition(const TraceDefinition& definition,
                                 const std::vector<TraceWorkload>& workloads,
                                 const std::filesystem::path& root,
                                 const std::filesystem::path& folder,
                                 const std::vector<std::string>& backends = {},
                                 std::set<std::string> taken = {});

/// Names of built-in backends for MLA, or for other attention.
using NativeBackends = std::function<std::vector<std::string>(bool is_mla)>;

/// All attentions of a trace set. Every scenario names native backends for comparison, and the
/// solutions of its definition. Errors: E-IO for a folder without definitions; E-VALUE for two
/// solutions whose classes would have the same name; those of reading.
ImportedTraces import_trace_set(const std::filesystem::path& root,
                                const std::filesystem::path& folder, const NativeBackends& natives);

/// Names of a trace set's solutions by those of their classes. Errors: as import_trace_set.
std::map<std::string, std::string> trace_solution_names(const std::filesystem::path& root);

/// The folder that holds `path` and its file "workloads", or that a blob of the workloads is
/// relative to: the nearest one above in which such a file exists, else the folder of `path`.
std::filesystem::path trace_root(const std::filesystem::path& path,
                                 const std::vector<TraceWorkload>& workloads);

}  // namespace attnbench
