// The attention over tensors that were read from files: heads, mask and sequences, by the metadata
// of a saved result or, without them, by what the format's scales are for.
#pragma once

#include <optional>
#include <string>

#include "calibrate/observations.h"
#include "inputs/files/safetensors.h"

namespace attnbench {

/// What the metadata of a result of `run --save-tensors` say of its attention (contract section 5).
struct SavedProblem {
  std::string layer = kUnnamedLayer;
  KernelRules rules;        // of the backend: windows and slopes differ (semantics §3.3, §3.4)
  AttentionSpec attention;  // every field that the metadata have, defaults for the others
};

/// Nothing for a file without metadata `problem`. Errors: E-FORMAT unless type, causal and scale
/// are there; for a field that does not suit, what the scenario loader would say (E-FORMAT,
/// E-CONFIG, E-VALUE), naming file and field; E-VALUE for a backend that `find_rules` does not know
/// and whose rules the file does not state.
std::optional<SavedProblem> saved_problem(const SafetensorsReader& reader,
                                          const FindRules& find_rules);

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
/// slopes that are NaN, E-FORMAT for those that the metadata tell of and that are not in the file.
void describe_attention(const std::string& layer, const TensorFile& file,
                        const SequenceStarts& starts, ScaleFormat format, Observation& observation);

/// The same of an observation with latents. Errors: also E-DTYPE for topk_indices of another type
/// than int32.
void describe_latent_attention(const std::string& layer, const TensorFile& file,
                               const SequenceStarts& starts, Observation& observation);

/// What a file without metadata is of: the layers that the format's scales are for.
inline bool is_for_encoders(ScaleFormat format) { return format == ScaleFormat::kVllmMm; }

}  // namespace attnbench
