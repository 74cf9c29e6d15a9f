// Scale files of every format as one type: for the commands that write and check them (contract
// section 6).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"

namespace attnbench {

enum class ScaleFormat { kVllmMm, kKvCache, kKvCacheLegacy, kInt8Value };
/// As --format takes them.
std::span<const EnumRow<ScaleFormat>> enum_rows(ScaleFormat);

/// Multipliers used when dequantising. Empty: the format has none for this tensor; one: for the
/// whole tensor; else one a KV head, or [Hk, D] of int8-value. The legacy form keeps its one scale
/// in k and in v.
struct LayerScales {
  std::string layer;
  std::array<std::vector<double>, 3> scale;  // of q, k and v
};

struct ScaleFile {
  std::string name;  // of the file that it was read from, for messages
  ScaleFormat format = ScaleFormat::kVllmMm;
  std::int64_t num_kv_heads = 0;  // int8-value only
  std::int64_t head_size = 0;
  std::vector<LayerScales> layers;
  std::vector<std::string> notices;
};

/// By what the entries look like when `format` is not given; an entry with long keys only is of
/// vllm-mm unless a layer is called self_attn, has lists or no q_scale. Errors: those of the
/// format's reader, E-VALUE for a file without layers and for zeros among the scales of int8-value.
ScaleFile parse_scale_file(std::string_view text, const std::string& name,
                           std::optional<ScaleFormat> format = std::nullopt);
/// The same of a file. Errors: also E-IO.
ScaleFile read_scale_file(const std::filesystem::path& path,
                          std::optional<ScaleFormat> format = std::nullopt);

/// Layers in the order given. `model_type` is written into the legacy form. Errors: E-VALUE for a
/// scale that is not finite and > 0, and in the legacy form unless the layers are numbered 0, 1,
/// ...
std::string scale_file_text(const ScaleFile& file, const std::string& model_type);

/// N of "model.layers.N.self_attn", or of the only number in the name; nothing without one. Layers
/// of the legacy form have no other name.
std::optional<std::int64_t> layer_number(std::string_view layer);

/// Whether `a` and `b` name one layer: the same text, or, in the legacy form, the same number.
bool same_layer(ScaleFormat format, std::string_view a, std::string_view b);

/// The scales of `layer`. Errors: E-VALUE naming the layers that there are.
const LayerScales& require_layer(const ScaleFile& file, const std::string& layer);

}  // namespace attnbench
