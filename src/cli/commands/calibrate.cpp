// attnbench calibrate: scale files from tensors or a scenario, and what the scales cost.
//
// Every method finds its scales and is shown with the error that they cause, but only the scales of
// --method are written. The file's format is that of --format, or what the scenario's cases read.
#include <filesystem>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/calibration.h"
#include "core/error.h"
#include "core/system/atomic_file.h"

namespace attnbench {
namespace {

struct CalibrateArguments {
  CalibrationArguments common;
  std::string method = "amax";
  std::string output;
  std::string model_type = "llama";
  bool force = false;
};

std::vector<OutputPath> outputs_of(const CalibrateArguments& arguments) {
  return {{"--output", arguments.output}, {"--json", arguments.common.json}};
}

/// Before anything is computed. The write itself refuses a file that came to exist meanwhile.
void check_output(const CalibrateArguments& arguments) {
  if (arguments.output == "-") {
    fail(ErrorKind::kUsage, "--output: expected a file; a scale file is not written to stdout");
  }
  check_output_paths(tensor_paths(arguments.common), outputs_of(arguments));
  std::error_code error;
  const bool exists =
      std::filesystem::exists(std::filesystem::symlink_status(arguments.output, error));
  if (exists && !arguments.force) {
    fail(ErrorKind::kIo, "--output: '{}' exists already; --force replaces it", arguments.output);
  }
  check_replaceable(arguments.output);
}

/// A ring of observations and signed values are parts of the method amax.
void check_method(const CalibrateArguments& arguments) {
  if (arguments.method == to_string(ScaleMethod::kAmax)) return;
  if (arguments.common.history) {
    fail(ErrorKind::kUsage, "--history: expected --method amax with it, found {}",
         arguments.method);
  }
  if (arguments.common.amax == "signed") {
    fail(ErrorKind::kUsage, "--amax signed: expected --method amax with it, found {}",
         arguments.method);
  }
}

int run_calibrate(const CalibrateArguments& arguments, const Console& console) {
  check_method(arguments);
  check_output(arguments);
  CalibrationInput input = open_calibration(arguments.common, console);
  check_output_paths(input.scenario_files, outputs_of(arguments));
  input.options.method = *enum_from_name<ScaleMethod>(arguments.method);
  print_scale_notices(arguments.common, input.notices, console);
  const CalibrationReport report = calibrate(*input.observations, input.options);
  const std::string text = scale_file_text(report.file, arguments.model_type);
  write_file_atomically(arguments.output, text,
                        arguments.force ? Existing::kReplace : Existing::kRefuse);
  print_calibration(arguments.common, report, arguments.method, console);
  return kExitPassed;
}

}  // namespace

RunCommand declare_calibrate(OptionTable& options) {
  auto arguments = std::make_shared<CalibrateArguments>();
  options.add({.names = "--output",
               .value = "FILE",
               .help = "Scale file to write",
               .target = &arguments->output,
               .required = true});
  options.add({.names = "--force",
               .help = "Replace the scale file when it exists",
               .target = &arguments->force});
  options.add({.names = "--method",
               .value = "METHOD",
               .help = "amax, percentile or mse (on the grid of codes)",
               .target = &arguments->method,
               .shows_default = true,
               .choices = {"amax", "percentile", "mse"}});
  options.add({.names = "--model-type",
               .value = "NAME",
               .help = "model_type of a kv-cache-legacy file",
               .target = &arguments->model_type,
               .shows_default = true});
  add_calibration_options(options, arguments->common);
  return [arguments](const Console& console) { return run_calibrate(*arguments, console); };
}

}  // namespace attnbench
