// A folder of a model as Hugging Face has it, as far as the scales of an fp8 cache are concerned:
// safetensors files, with an index where there are several, and config.json.
//
// Two tools write such scales, and engines read both. compressed-tensors (llm-compressor) has
// <layer>.k_scale, .v_scale and, where attention is quantised too, .q_scale, each of shape [1] or,
// by head, [Hk, 1, 1] ([H, 1, 1] for q), with `quantization_config.kv_cache_scheme` in config.json.
// ModelOpt has <layer>.k_proj.k_scale and .v_proj.v_scale, one number each, with
// `kv_cache_quant_algo` in hf_quant_config.json.
//
// Only headers and the scale tensors are read: a checkpoint may have hundreds of gigabytes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inputs/files/safetensors.h"
#include "inputs/files/scale_file.h"

namespace attnbench {

enum class CheckpointScheme { kCompressedTensors, kModelOpt };
std::span<const EnumRow<CheckpointScheme>> enum_rows(CheckpointScheme);

/// A tensor of one of the files.
struct CheckpointTensor {
  std::size_t shard = 0;
  const SafetensorsEntry* entry = nullptr;
};

class Checkpoint {
 public:
  /// Errors: E-IO for a folder without safetensors files, E-FORMAT for an index or a config.json
  /// that is not one, and for an index that names a tensor which its file does not have.
  explicit Checkpoint(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<SafetensorsReader>& shards() const { return shards_; }
  const std::vector<std::string>& shard_names() const { return shard_names_; }  // of their files
  bool has_index() const { return has_index_; }
  /// Attention layers, "model.layers.0.self_attn", in natural order.
  const std::vector<std::string>& layers() const { return layers_; }
  const CheckpointTensor* find(const std::string& tensor) const;  // null when absent

  /// What the configuration says: the tool that quantised the model, nothing for a model that none
  /// did. Errors: E-VALUE for another quant_method.
  std::optional<CheckpointScheme> configured_scheme() const;
  /// Whether there is a scale tensor of either tool.
  bool has_scales() const;
  /// Name of a scale tensor; `role` 0 to 2 is q, k and v.
  static std::string scale_name(CheckpointScheme scheme, const std::string& layer,
                                std::size_t role);

  /// The scales as a scale file of the format kv-cache. A layer without q_scale has its k_scale
  /// there, as vLLM takes it. Errors: E-VALUE, naming all that is wrong: no scales, layers without,
  /// scales that are not finite and > 0, zero points, a scheme in the configuration that says
  /// otherwise.
  ScaleFile scales() const;

  /// JSON files of the folder; null where there is none. Their NaN and Infinity are strings behind
  /// kNumberMark.
  const nlohmann::ordered_json& config() const { return *config_; }
  const nlohmann::ordered_json& modelopt_config() const { return *modelopt_config_; }

 private:
  void open_shards();
  void read_index(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<SafetensorsReader> shards_;
  std::vector<std::string> shard_names_;
  bool has_index_ = false;
  std::map<std::string, CheckpointTensor> tensors_;
  std::vector<std::string> layers_;
  std::shared_ptr<const nlohmann::ordered_json> config_;
  std::shared_ptr<const nlohmann::ordered_json> modelopt_config_;
};

/// An index, which may name a hundred thousand tensors: sorted, so that reading takes no time.
/// Errors: E-IO, E-FORMAT.
nlohmann::json read_index_json(const std::filesystem::path& path);

inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kModelConfigName = "config.json";
inline constexpr const char* kModelOptConfigName = "hf_quant_config.json";

}  // namespace attnbench
