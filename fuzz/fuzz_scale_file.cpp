// Any text is a scale file of some format or is refused with an Error; what is read has scales that
// are finite and > 0, and, written again, reads back as the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "inputs/files/scale_file.h"
#include "inputs/files/scale_text.h"

namespace {

void check(const std::string& text, std::optional<attnbench::ScaleFormat> format) {
  attnbench::ScaleFile file;
  try {
    file = attnbench::parse_scale_file(text, "fuzz", format);
  } catch (const attnbench::Error& error) {
    if (error.kind() == attnbench::ErrorKind::kInternal) std::abort();
    return;
  }
  if (file.layers.empty()) std::abort();
  for (const attnbench::LayerScales& layer : file.layers) {
    for (const std::vector<double>& scales : layer.scale) {
      for (const double scale : scales) {
        if (!attnbench::is_scale(scale)) std::abort();
      }
    }
  }
  std::string written;
  try {
    written = attnbench::scale_file_text(file, "llama");
  } catch (const attnbench::Error&) {
    // The legacy form has its layers' numbers in order, which a file to be read need not have.
    if (file.format != attnbench::ScaleFormat::kKvCacheLegacy) std::abort();
    return;
  }
  const attnbench::ScaleFile again = attnbench::parse_scale_file(written, "again", file.format);
  if (again.layers.size() != file.layers.size()) std::abort();
  for (std::size_t i = 0; i < file.layers.size(); ++i) {
    if (again.layers[i].scale != file.layers[i].scale) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check(text, std::nullopt);
  for (const auto& row : enum_rows(attnbench::ScaleFormat{})) check(text, row.value);
  return 0;
}
