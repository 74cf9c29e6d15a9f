// attnbench scales: checks a scale file of any format, or the scales in a checkpoint, and shows
// what they cost.
//
// With a file and nothing else it only checks: format, layers, every scale finite and positive.
// With tensors or a scenario it also computes the attention error that quantising by the file's
// scales causes, in the table that `calibrate` prints.
#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/session/calibration.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/checkpoint/checkpoint.h"

namespace attnbench {
namespace {

struct ScalesArguments {
  CalibrationArguments common;
  std::string file;
};

/// Errors: those of require_layer for the first layer that the file does not have.
void require_layers(const ScaleFile& file, const std::vector<std::string>& layers) {
  for (const std::string& layer : layers) require_layer(file, layer);
}

std::string scale_text(const std::vector<double>& scales) {
  if (scales.empty()) return "-";
  const auto [least, largest] = std::minmax_element(scales.begin(), scales.end());
  if (scales.size() == 1) return fmt::format("{}", *least);
  return fmt::format("{} scales, {:.4g} to {:.4g}", scales.size(), *least, *largest);
}

void print_scales(const ScaleFile& file, const std::string& path, const Console& console) {
  console.out << fmt::format("{}: {}, {} layer{}, every scale finite and > 0\n", printable(path),
                             to_string(file.format), file.layers.size(),
                             file.layers.size() == 1 ? "" : "s");
  for (const LayerScales& layer : file.layers) {
    console.out << fmt::format("  {}  q {}  k {}  v {}\n", shown(layer.layer),
                               scale_text(layer.scale[0]), scale_text(layer.scale[1]),
                               scale_text(layer.scale[2]));
  }
}

/// Whether the error has to be computed with a scale for each KV head, because the file has them.
bool has_scales_per_head(const ScaleFile& file) {
  return file.format == ScaleFormat::kKvCache &&
         std::any_of(file.layers.begin(), file.layers.end(), [](const LayerScales& layer) {
           return layer.scale[kKeyRole].size() > 1 || layer.scale[kValueRole].size() > 1;
         });
}

/// What `check` throws about the file, with what to do about it. Why no repair: a scale that is
/// missing can only be measured.
template <typename Check>
auto advising(const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    throw Error(error.kind(),
                fmt::format("{}\nscales that are missing or wrong have to be measured: "
                            "attnbench calibrate --tensors FILE... --output FILE",
                            error.what()));
  }
}

/// That of a file, or of the safetensors of a model's folder.
ScaleFile read_scales(const std::string& path, std::optional<ScaleFormat> format) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return read_scale_file(path, format);
  if (format && *format != ScaleFormat::kKvCache) {
    fail(ErrorKind::kUsage, "--format: expected kv-cache for a checkpoint, found {}",
         to_string(*format));
  }
  return Checkpoint(path).scales();
}

int check_scales(const ScalesArguments& arguments, const Console& console) {
  const CalibrationArguments& common = arguments.common;
  std::vector<InputPath> inputs = tensor_paths(common);
  inputs.push_back({"FILE", arguments.file});
  const std::vector<OutputPath> outputs{{"--json", common.json}};
  check_output_paths(inputs, outputs);
  std::optional<ScaleFormat> format;
  if (!common.format.empty()) format = enum_from_name<ScaleFormat>(common.format);
  const std::vector<std::string> wanted = expand_layers(common.layers);
  const ScaleFile file = advising([&] { return read_scales(arguments.file, format); });
  print_scale_notices(common, file.notices, console);
  advising([&] { require_layers(file, wanted); });
  if (common.scenario.empty() && common.tensors.empty()) {
    if (!common.json.empty()) {
      fail(ErrorKind::kUsage, "--json: expected SCENARIO or --tensors with it, found neither");
    }
    print_scales(file, arguments.file, console);
    return kExitPassed;
  }
  CalibrationArguments with_file = common;
  with_file.per_head = has_scales_per_head(file);
  CalibrationInput input = open_calibration(with_file, console, &file);
  check_output_paths(input.scenario_files, outputs);
  print_scale_notices(common, input.notices, console);
  advising([&] { require_layers(file, input.observations->layers()); });
  print_calibration(common, assess(*input.observations, input.options, file), arguments.file,
                    console);
  return kExitPassed;
}

}  // namespace

RunCommand declare_scales(OptionTable& options) {
  auto arguments = std::make_shared<ScalesArguments>();
  options.add({.names = "FILE",
               .help = "Scale file of any format, or the folder of a model with scales",
               .target = &arguments->file,
               .required = true});
  add_calibration_options(options, arguments->common);
  return [arguments](const Console& console) { return check_scales(*arguments, console); };
}

}  // namespace attnbench
