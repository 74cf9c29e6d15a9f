// The attention over tensors that were read from files: heads, mask and sequences, by the metadata
// of a saved result or, without them, by what the format's scales are for.
#pragma once

#include <optional>
#include <string>

#include "calibrate/observations.h"
#include "calibrate/saved_problem.h"
#include "inputs/files/safetensors.h"

namespace attnbench {

struct TensorFile {
  SafetensorsReader reader;
  bool is_saved_result = false;       // has the names of contract section 5
  std::optional<SavedProblem> saved;  // what its metadata say, if anything
  std::string layer;                  // of a saved result
};

/// Where sequences begin: query_start_loc or <layer>.cu_seqlens; without an entry they are one.
struct SequenceStarts {
  const SafetensorsReader* reader = nullptr;
  const SafetensorsEntry* entry = nullptr;
};

/// Fills in heads, mask and lengths, or why there is no attention; `file` is that of the query.
/// Errors: E-SHAPE and E-VALUE for tensors, lengths or ranges that disagree, E-VALUE for sinks or
/// slopes that are NaN, E-FORMAT for those that the metadata tell of and the file lacks.
void describe_attention(const std::string& layer, const TensorFile& file,
                        const SequenceStarts& starts, ScaleFormat format, Observation& observation);

/// What a file without metadata is of: the layers that the format's scales are for.
inline bool is_for_encoders(ScaleFormat format) { return format == ScaleFormat::kVllmMm; }

}  // namespace attnbench
