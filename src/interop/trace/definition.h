// The records of FlashInfer-Trace: what a kernel computes (Definition), on what (Workload), and
// kernels for it (Solution). github.com/flashinfer-ai/flashinfer-bench, docs/flashinfer-trace.
//
// Read are the files of the data set, the definitions that FlashInfer itself dumps (fi_trace: some
// data types are "unknown" there, and inputs of plan() are optional), and the problem files of
// SOL-ExecBench, which have the same form: a workload stands by itself there, and an axis may be an
// expression of others. Which attention a definition means follows from the names of its inputs,
// since op_type is a free text that older files do not have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace attnbench {

struct TraceTensor {
  std::string name;
  std::vector<std::string> axes;  // empty: a scalar
  std::string dtype;              // "bfloat16", "float8_e4m3fn", "int32", "unknown", ...
  bool optional = false;
};

struct TraceDefinition {
  std::string name;
  std::string op_type;                             // as the file says it; may be empty
  std::string path;                                // of the file
  std::map<std::string, std::int64_t> constants;   // axes that the definition fixes
  std::map<std::string, std::string> expressions;  // axes that follow from others
  std::vector<TraceTensor> inputs;                 // in the order of the arguments
  std::vector<TraceTensor> outputs;

  const TraceTensor* input(const std::string& tensor) const;  // null when there is none
};

/// Where the values of an input come from.
struct TraceInput {
  enum class Kind { kRandom, kScalar, kSafetensors };
  Kind kind = Kind::kRandom;
  double value = 0;                 // kScalar
  std::filesystem::path path = {};  // kSafetensors; relative to the root of the trace set
  std::string tensor_key = {};
};

struct TraceWorkload {
  std::string definition;  // empty where the file does not say
  std::string uuid;
  std::map<std::string, std::int64_t> axes;
  std::map<std::string, TraceInput> inputs;
  std::string json;  // the workload as it was read, in one line

  /// The input's source; null where the workload does not name it.
  const TraceInput* input(const std::string& tensor) const;
};

struct TraceSolution {
  std::string name;
  std::string definition;
  std::string path;
};

/// Errors: E-IO; E-FORMAT naming the file and the field for what is no definition.
TraceDefinition read_trace_definition(const std::filesystem::path& path);

/// The workloads of a file of JSON lines, each uuid once; lines that have results as well are
/// workloads too. Errors: E-IO; E-FORMAT naming file and line.
std::vector<TraceWorkload> read_trace_workloads(const std::filesystem::path& path);

/// The head of a solution; its sources are read by the Python that runs them. Errors: as above.
TraceSolution read_trace_solution(const std::filesystem::path& path);

/// Size of an axis: of the definition, of the workload, or computed; nothing where it is not known.
/// Errors: E-FORMAT for an expression that is none.
std::optional<std::int64_t> axis_size(const TraceDefinition& definition,
                                      const TraceWorkload& workload, const std::string& axis);

}  // namespace attnbench
