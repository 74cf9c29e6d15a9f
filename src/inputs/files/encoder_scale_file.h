// Scale files of the multimodal encoder's fp8 attention, as vLLM reads and writes them
// (semantics §10.7, contract section 6).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attnbench {

/// Multipliers used when dequantising.
struct MmLayerScales {
  double q = 1;
  double k = 1;
  double v = 1;
};

/// In file order.
struct MmScaleFile {
  std::vector<std::pair<std::string, MmLayerScales>> layers;
  std::vector<std::string> notices;  // entries that are no scales, one sentence each

  const MmLayerScales* find(std::string_view layer) const;  // null when absent
};

/// Errors: E-IO not a regular file, or unreadable; E-FORMAT not a JSON object, or a scale
/// that is no number; E-VALUE a scale that is not finite and > 0, also once it is a float32. Of a
/// name that is there twice the last one counts, with a notice.
MmScaleFile read_mm_scales(const std::filesystem::path& path);
/// The same for text in memory; `name` is for messages.
MmScaleFile parse_mm_scales(std::string_view text, const std::string& name);

/// The scales of `layer`, or E-VALUE naming the layers that there are.
const MmLayerScales& require_mm_scales(const MmScaleFile& file, const std::string& layer,
                                       const std::string& name);

/// E-IO unless the file's folder exists.
void check_mm_scale_target(const std::filesystem::path& path);

/// Flat object in the order given, indent 2. Errors: E-VALUE for a scale that is not finite and >
/// 0.
std::string mm_scales_text(const std::vector<std::pair<std::string, MmLayerScales>>& layers);
/// The same as a file that appears whole or not at all. Errors: those, and E-IO.
void write_mm_scales(const std::filesystem::path& path,
                     const std::vector<std::pair<std::string, MmLayerScales>>& layers);

}  // namespace attnbench
