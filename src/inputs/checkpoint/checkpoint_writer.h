// Scales written into a checkpoint, with its configuration.
//
// Every file that changes is written beside the old one first and synced; then all are renamed, the
// configuration last. So a full disk or a killed process leaves the checkpoint as it was, and at no
// moment is there half a file. Tensors other than scales keep their bytes; the file that holds them
// is copied in pieces where a scale of it is replaced. New scales of a model with an index go into
// a file of their own, so that nothing large is copied.
//
// A model of two files gets, for each layer, two tensors in a third one, and config.json the word
// that engines look for:
//   model-kv-cache-scales.safetensors   model.layers.0.self_attn.k_scale  F32 [1], ...
//   model.safetensors.index.json        "weight_map": {..., "<name>": "<file>"}
//   config.json                         "quantization_config": {"kv_cache_scheme": {...}}
#pragma once

#include <string>
#include <vector>

#include "inputs/checkpoint/checkpoint.h"

namespace attnbench {

struct WrittenCheckpoint {
  CheckpointScheme scheme = CheckpointScheme::kCompressedTensors;
  std::vector<std::string> files;  // that were written, by name
};

/// Scales of the query: engines take k_scale for it where there is none.
enum class QueryScales { kReplaced, kAdded };

/// Writes k_scale and v_scale of every attention layer, and q_scale where there is one already or,
/// with kAdded, in every layer, as one number.
/// Scales keep the dtype of the tensor that they replace; new ones are float32. `file` is of the
/// format kv-cache. Errors: E-VALUE for layers that the file does not cover or the checkpoint does
/// not have, for several scales a layer or kAdded with ModelOpt, for a scale that its dtype rounds
/// to 0 or infinity, for scales under the other tool's names; E-IO with nothing changed (but for
/// renames that fail half-way, which name the file).
WrittenCheckpoint write_checkpoint_scales(const Checkpoint& checkpoint, const ScaleFile& file,
                                          QueryScales query = QueryScales::kReplaced);

/// What write_checkpoint_scales would refuse, before anything is computed. Errors: those.
void check_checkpoint_layers(const Checkpoint& checkpoint, const std::vector<std::string>& layers,
                             bool is_per_head, QueryScales query = QueryScales::kReplaced);

}  // namespace attnbench
