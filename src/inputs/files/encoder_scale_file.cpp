// Scale files of the encoder. What is accepted follows vLLM's loader, oddities included: short and
// long keys, numbers in strings, a name given twice. A file that vLLM reads is read with the same
// numbers, and what vLLM writes is written with the same bytes.
#include "inputs/files/encoder_scale_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/system/atomic_file.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kEncoderScaleFile = "FP8 scale file";

void check_scales(const MmLayerScales& scales, const std::string& layer) {
  const auto describe = [&] {
    return fmt::format("got q={}, k={}, v={} for layer '{}'", python_repr(scales.q),
                       python_repr(scales.k), python_repr(scales.v), shown(layer));
  };
  for (const double scale : {scales.q, scales.k, scales.v}) {
    if (scale <= 0) {
      fail(ErrorKind::kValue, "FP8 scales must be positive, {}", describe());
    }
  }
  for (const double scale : {scales.q, scales.k, scales.v}) {
    if (!is_scale(scale)) {
      fail(ErrorKind::kValue, "FP8 scales must be finite and positive in float32, {}", describe());
    }
  }
}

/// `q`, or else `q_scale`; the short key wins when it is there, even as null.
const Json* scale_entry(const Json& entry, const char* key) {
  for (const std::string& name : {std::string(key), std::string(key) + "_scale"}) {
    const auto found = entry.find(name);
    if (found != entry.end()) return found->is_null() ? nullptr : &*found;
  }
  return nullptr;
}

void read_entry(const std::string& layer, const Json& entry, const std::string& name,
                MmScaleFile& file) {
  const auto skip = [&](const char* why) {
    file.notices.push_back(
        fmt::format("{} {}: '{}' is left out: {}", kEncoderScaleFile, name, shown(layer), why));
  };
  if (!entry.is_object()) return skip("it is not an object");
  MmLayerScales scales;
  for (const auto& [key, scale] :
       {std::pair{"q", &scales.q}, std::pair{"k", &scales.k}, std::pair{"v", &scales.v}}) {
    const Json* value = scale_entry(entry, key);
    if (value == nullptr) return skip("it has not all of q, k and v");
    *scale = scale_number(
        *value, fmt::format("{} {}: {} of layer '{}'", kEncoderScaleFile, name, key, shown(layer)));
  }
  check_scales(scales, layer);
  file.layers.emplace_back(layer, scales);
}

}  // namespace

const MmLayerScales* MmScaleFile::find(std::string_view layer) const {
  for (const auto& [name, scales] : layers) {
    if (name == layer) return &scales;
  }
  return nullptr;
}

MmScaleFile parse_mm_scales(std::string_view text, const std::string& name) {
  MmScaleFile file;
  const Json document =
      parse_scale_json(text, fmt::format("{} {}", kEncoderScaleFile, name), &file.notices);
  for (std::string& notice : file.notices) notice += ": the last one counts";
  const auto nested = document.find("layers");
  const bool is_nested = nested != document.end() && nested->is_object();
  for (const auto& [layer, entry] : (is_nested ? *nested : document).items()) {
    read_entry(layer, entry, name, file);
  }
  return file;
}

MmScaleFile read_mm_scales(const fs::path& path) {
  return parse_mm_scales(read_scale_text(path, kEncoderScaleFile), path.string());
}

const MmLayerScales& require_mm_scales(const MmScaleFile& file, const std::string& layer,
                                       const std::string& name) {
  if (const MmLayerScales* scales = file.find(layer)) return *scales;
  std::vector<std::string> available;
  for (const auto& entry : file.layers) available.push_back(entry.first);
  fail_without_scales(layer, name, available);
}

void check_mm_scale_target(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail(ErrorKind::kIo, "FP8 scale save path '{}': expected a folder '{}', found none",
         path.string(), folder.string());
  }
  if (fs::is_directory(path, error)) {
    fail(ErrorKind::kIo, "FP8 scale save path '{}': expected a file, found a folder",
         path.string());
  }
}

std::string mm_scales_text(const std::vector<std::pair<std::string, MmLayerScales>>& layers) {
  Json document = Json::object();
  for (const auto& [layer, scales] : layers) {
    check_scales(scales, layer);
    document[layer] = {{"q", scales.q}, {"k", scales.k}, {"v", scales.v}};
  }
  return document.dump(2);
}

void write_mm_scales(const fs::path& path,
                     const std::vector<std::pair<std::string, MmLayerScales>>& layers) {
  check_mm_scale_target(path);
  write_file_atomically(path, mm_scales_text(layers));
}

}  // namespace attnbench
