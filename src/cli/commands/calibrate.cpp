// attnbench calibrate: scale files from tensors or a scenario, and what the scales cost. With
// --checkpoint the scales go into a model's own files, and are judged as they are read back from
// there: rounded to the tensors' type, and with the query's scale that an engine would take.
//
// Every method finds its scales and is shown with the error that they cause, but only the scales of
// --method are written. The file's format is that of --format, or what the scenario's cases read.
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/calibration.h"
#include "core/error.h"
#include "core/system/atomic_file.h"
#include "core/system/printable.h"
#include "inputs/checkpoint/checkpoint_writer.h"

namespace attnbench {
namespace {

struct CalibrateArguments {
  CalibrationArguments common;
  std::string method = "amax";
  std::string output;
  std::string checkpoint;
  std::string model_type = "llama";
  bool force = false;
  bool query_scales = false;

  QueryScales query() const { return query_scales ? QueryScales::kAdded : QueryScales::kReplaced; }
};

std::vector<OutputPath> outputs_of(const CalibrateArguments& arguments) {
  return {{"--output", arguments.output}, {"--json", arguments.common.json}};
}

/// Before anything is computed. The write itself refuses a file that came to exist meanwhile.
void check_output(const CalibrateArguments& arguments) {
  if (arguments.output.empty()) {
    if (!arguments.checkpoint.empty()) return;
    fail(ErrorKind::kUsage, "--output is required, or --checkpoint");
  }
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

/// The checkpoint, which must not have scales unless --force is given.
std::unique_ptr<Checkpoint> open_checkpoint(CalibrateArguments& arguments) {
  if (arguments.checkpoint.empty()) {
    if (arguments.query_scales)
      fail(ErrorKind::kUsage, "--query-scales: expected --checkpoint with it");
    return nullptr;
  }
  std::string& format = arguments.common.format;
  if (!format.empty() && format != to_string(ScaleFormat::kKvCache)) {
    fail(ErrorKind::kUsage, "--checkpoint: expected --format kv-cache with it, found {}", format);
  }
  format = to_string(ScaleFormat::kKvCache);
  auto checkpoint = std::make_unique<Checkpoint>(arguments.checkpoint);
  if (checkpoint->has_scales() && !arguments.force) {
    fail(ErrorKind::kIo, "--checkpoint: '{}' has scales already; --force replaces them",
         printable(arguments.checkpoint));
  }
  return checkpoint;
}

/// Writes the scales, and reports on what is read back.
CalibrationReport write_and_assess(const Checkpoint& checkpoint, CalibrationInput& input,
                                   const CalibrationReport& report,
                                   const CalibrateArguments& arguments, const Console& console) {
  const WrittenCheckpoint written =
      write_checkpoint_scales(checkpoint, report.file, arguments.query());
  const ScaleFile file = Checkpoint(arguments.checkpoint).scales();
  std::vector<std::string> notices = file.notices;
  notices.push_back(fmt::format("{}: scales of {} written to {}", printable(arguments.checkpoint),
                                to_string(written.scheme), fmt::join(written.files, ", ")));
  print_scale_notices(arguments.common, notices, console);
  return assess(*input.observations, input.options, file);
}

int run_calibrate(CalibrateArguments& arguments, const Console& console) {
  check_method(arguments);
  check_output(arguments);
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(arguments);
  CalibrationInput input = open_calibration(arguments.common, console);
  check_output_paths(input.scenario_files, outputs_of(arguments));
  input.options.method = *enum_from_name<ScaleMethod>(arguments.method);
  print_scale_notices(arguments.common, input.notices, console);
  if (checkpoint) {
    check_checkpoint_layers(*checkpoint, input.observations->layers(), input.options.per_head,
                            arguments.query());
  }
  CalibrationReport report = calibrate(*input.observations, input.options);
  if (!arguments.output.empty()) {
    const std::string text = scale_file_text(report.file, arguments.model_type);
    write_file_atomically(arguments.output, text,
                          arguments.force ? Existing::kReplace : Existing::kRefuse);
  }
  if (checkpoint) report = write_and_assess(*checkpoint, input, report, arguments, console);
  print_calibration(arguments.common, report, arguments.method, console);
  if (!arguments.output.empty() && !arguments.common.quiet) {
    std::ostream& out = arguments.common.json == "-" ? console.err : console.out;
    const std::size_t count = report.file.layers.size();
    out << fmt::format("wrote {}: scales of {} layer{}, format {}\n", printable(arguments.output),
                       count, count == 1 ? "" : "s", to_string(report.file.format));
  }
  return kExitPassed;
}

}  // namespace

RunCommand declare_calibrate(OptionTable& options) {
  auto arguments = std::make_shared<CalibrateArguments>();
  options.add({.names = "--output",
               .value = "FILE",
               .help = "Scale file to write; not needed with --checkpoint",
               .target = &arguments->output});
  options.add({.names = "--checkpoint",
               .value = "DIR",
               .help = "Write the scales of an fp8 cache into the safetensors and configuration of "
                       "this model, in the form of compressed-tensors or ModelOpt",
               .target = &arguments->checkpoint});
  options.add({.names = "--query-scales",
               .help = "With --checkpoint: also add a q_scale to layers that have none, which "
                       "otherwise only replaces existing ones (compressed-tensors)",
               .target = &arguments->query_scales});
  options.add({.names = "--force",
               .help = "Replace an existing scale file, or existing scales of the checkpoint",
               .target = &arguments->force});
  options.add({.names = "--method",
               .value = "METHOD",
               .help = "amax, percentile or mse (least squared error of the codes)",
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
