// Scale files of an fp8 KV cache: {"<layer>": {"k_scale", "v_scale", "q_scale"}}, and the form of
// vLLM's former quantization_param_path (contract section 6).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// Multipliers used when dequantising.
struct KvLayerScales {
  std::vector<double> k{1.0};  // [1], or [Hk]
  std::vector<double> v{1.0};
  double q = 1.0;
};

struct KvScaleFile {
  /// In file order. In the legacy form a layer is named by its number, and its one scale is both
  /// that of keys and of values.
  std::vector<std::pair<std::string, KvLayerScales>> layers;
  bool is_legacy = false;
  std::vector<std::string> notices;
};

/// Either form. A layer without q_scale has 1, with a notice. Of several ranks of the legacy form
/// the first counts. Errors: E-FORMAT (not such an object, a scale that is no number, an entry that
/// is not whole), E-VALUE (a scale that is not finite and > 0 in float32, no layers).
KvScaleFile parse_kv_scales(std::string_view text, const std::string& name);
/// The same of a file. Errors: also E-IO.
KvScaleFile read_kv_scales(const std::filesystem::path& path);

/// Indent 2, in the order given. Errors: E-VALUE for a scale that is not finite and > 0.
std::string kv_scales_text(const std::vector<std::pair<std::string, KvLayerScales>>& layers);

/// The legacy form of scales for layers 0, 1, ...; of one rank. Errors: as kv_scales_text.
std::string legacy_kv_scales_text(const std::vector<double>& scales, const std::string& model_type);

/// Sets k_scale, v_scale and q_scale from kv_cache.scale_file, where the problem has one: of the
/// first layer in natural order, with a notice when there are several. `given`: the keys that the
/// scenario gives itself ("kv_cache.k_scale") and where, as messages begin. Errors: as
/// read_kv_scales; E-SHAPE when a list has not num_kv_heads scales; E-CONFIG for a number that is
/// given, be it the default, and not the file's.
std::vector<std::string> adopt_kv_scale_file(Problem& problem,
                                             const std::map<std::string, std::string>& given);

}  // namespace attnbench
