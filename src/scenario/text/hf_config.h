// The config.json of a Hugging Face model as a scenario of one of its attention layers, so that
// `extends: path/to/config.json` needs no model file written by hand.
//
// Only what the attention depends on is read: heads, head size, data type, window, soft-cap, scale,
// ALiBi, sinks, the dimensions of MLA, and an fp8 KV cache that the checkpoint was quantised for.
// The keys have different names in different families; names and rules are those of the
// configuration classes in the package `transformers` and of vLLM's model files. A nested
// configuration (text_config, llm_config, language_config) goes over the one around it.
//
// Models with layers of two kinds, with a sliding window and without, give the one with a window,
// as scenarios/models does; `attention: {sliding_window: null}` gives the other.
//
//   {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8,
//    "hidden_size": 4096, "torch_dtype": "bfloat16"}
//   -> attention: {type: decoder, num_heads: 32, num_kv_heads: 8, head_size: 128, dtype: bfloat16}
//
// What no key says is what the family does by its code: BLOOM has linear ALiBi, gpt-oss a learned
// sink a head (here drawn), DeepSeek's MLA a scale that YaRN multiplies. A type without such a rule
// is read by the common keys. Chunked attention (Llama 4) and linear attention have no place in a
// scenario: the result is the layer of full attention, as in
// scenarios/models/llama-4-maverick.yaml.
#pragma once

#include "core/value.h"

namespace attnbench {

/// Whether the document is such a configuration: it has keys that only those have, and none that a
/// scenario has to have.
bool is_hf_config(const Value& document);

/// The scenario that a file which extends the configuration goes over, and that `init --hf` writes.
/// It has name (from the model's type or path), description, attention, mla, kv_cache and a
/// small batch. Every value has the mark of the one that it was made from. Errors, with the place
/// in the file: E-FORMAT for a key of the wrong type, a head size that does not follow, and a model
/// without attention heads; E-CONFIG for one whose attention no scenario describes (relative
/// position bias).
Value scenario_of_hf_config(const Value& config);

}  // namespace attnbench
