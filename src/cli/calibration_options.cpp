#include "cli/calibration_options.h"

#include <malloc.h>

#include <CLI/CLI.hpp>

#include "backends/backend.h"
#include "calibrate/report.h"
#include "cli/device.h"
#include "cli/device_amax.h"
#include "cli/number_check.h"
#include "cli/scenario_files.h"
#include "cli/text.h"
#include "core/error.h"
#include "core/parallel.h"
#include "report/reporter.h"

namespace attnbench {
namespace {

constexpr const char* kScenario = "SCENARIO";

/// "layer 3 of 32" on a terminal, gone when the last copy of it is: also before an error is
/// printed.
class LayerLine {
 public:
  explicit LayerLine(std::ostream& err) : err_(err) {}
  LayerLine(const LayerLine&) = delete;
  LayerLine& operator=(const LayerLine&) = delete;
  ~LayerLine() { clear(); }

  void show(std::size_t done, std::size_t total) {
    clear();
    if (done + 1 == total) return;  // the table is about to follow
    err_ << fmt::format("layer {} of {}", done + 1, total) << std::flush;
    is_shown_ = true;
  }

 private:
  void clear() {
    if (is_shown_) err_ << "\r\x1b[K" << std::flush;
    is_shown_ = false;
  }

  std::ostream& err_;
  bool is_shown_ = false;
};

/// What a scenario's cases are calibrated for when --format does not say.
ScaleFormat format_of(const Problem& problem) {
  if (problem.attention.type == AttentionType::kMmEncoder) return ScaleFormat::kVllmMm;
  return problem.kv_cache.int8_level == 1 ? ScaleFormat::kInt8Value : ScaleFormat::kKvCache;
}

std::vector<std::string> layers_of(const Problem& problem, const ScaleFile* file) {
  if (problem.attention.type == AttentionType::kMmEncoder) return problem.mm_encoder.layer_names;
  if (file == nullptr) return {kUnnamedLayer};
  std::vector<std::string> layers;
  for (const LayerScales& layer : file->layers) layers.push_back(layer.layer);
  return layers;
}

void open_scenario(const CalibrationArguments& arguments, const ScaleFile* file,
                   const std::vector<std::string>& wanted, CalibrationInput& input) {
  std::vector<LoadedScenario> loaded =
      load_scenarios({arguments.scenario}, scenario_overrides(arguments.selection));
  input.scenario_files = input_paths(loaded);
  std::vector<Problem> cases = std::move(loaded.front().scenario.cases);
  input.notices = std::move(loaded.front().notices);
  const Problem& first = cases.front();
  CalibrationOptions& options = input.options;
  if (arguments.format.empty() && file == nullptr) options.format = format_of(first);
  if (arguments.amax.empty()) options.amax = first.mm_encoder.amax;
  options.sample.seed = first.inputs.seed;
  std::vector<std::string> layers = wanted.empty() ? layers_of(first, file) : wanted;
  input.observations = scenario_observations(std::move(cases), std::move(layers),
                                             options.history.value_or(1), find_kernel_rules);
}

void take_device(const std::string& name, CalibrationOptions& options) {
  const DeviceChoice device = choose_device(name, "");
  if (!device.refusals.empty()) fail(ErrorKind::kUnsupported, "{}", device.refusals.front());
  if (device.is_cuda()) options.device_amax = amax_on(open_ops(device, 0, ""), options.amax);
}

void check_source(const CalibrationArguments& arguments) {
  if (arguments.scenario.empty() == arguments.tensors.empty()) {
    fail(ErrorKind::kUsage, "expected either SCENARIO or --tensors FILE..., found {}",
         arguments.scenario.empty() ? "neither" : "both");
  }
  if (arguments.scenario.empty() && !arguments.selection.set.empty()) {
    fail(ErrorKind::kUsage, "--set: expected SCENARIO with it, found --tensors");
  }
}

}  // namespace

void add_calibration_options(CLI::App& app, CalibrationArguments& arguments) {
  app.add_option(kScenario, arguments.scenario,
                 "Scenario whose seeded tensors are taken, or name of a shipped scenario");
  app.add_option("--tensors", arguments.tensors,
                 "Safetensors files with <layer>.q, .k, .v, or those of run --save-tensors")
      ->type_name("FILE");
  app.add_option("--layers", arguments.layers,
                 "Layers that there must be: names, or a template such as 'blocks.{}.attn:32'")
      ->delimiter(',')
      ->type_name("NAME");
  std::vector<std::string> formats;
  for (const auto& row : enum_rows(ScaleFormat{})) formats.emplace_back(row.name);
  app.add_option("--format", arguments.format, join(formats, ", "))
      ->type_name("FORMAT")
      ->check(CLI::IsMember(formats).description(""));
  app.add_option("--percentile", arguments.percentile, "Of the magnitudes, for the method of it")
      ->type_name("P")
      ->check(number_between(1e-9, 100))
      ->capture_default_str();
  app.add_option("--margin", arguments.margin, "Factor on every scale that a method finds")
      ->type_name("M")
      ->check(positive_number())
      ->capture_default_str();
  app.add_option("--history", arguments.history,
                 "amax: successive files, or forwards of the scenario, go through a ring of N; "
                 "without it everything is one observation")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000).description(""));
  app.add_option("--amax", arguments.amax,
                 "abs, or signed as vLLM has it, which misses large negative values")
      ->type_name("KIND")
      ->check(CLI::IsMember({"abs", "signed"}).description(""));
  app.add_flag("--per-head", arguments.per_head,
               "A scale for each KV head of keys and values (kv-cache)");
  app.add_option("--max-rows", arguments.max_rows,
                 "Rows of a forward that the attention error is taken over")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000'000).description(""))
      ->capture_default_str();
  app.add_option("--device", arguments.device,
                 "cpu, auto or cuda[:N]: where amax of whole tensors is taken; checked on the CPU")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "CPU threads; 0 takes all cores")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""));
  app.add_option("--set", arguments.selection.set, "Override a field of the scenario (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--seed", arguments.selection.seed,
                 "Seed of the scenario's tensors and of the sampled rows, from 0")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""));
  app.add_option("--json", arguments.json, "Write the report as JSON (- = standard output)")
      ->type_name("FILE");
  app.add_flag("-q,--quiet", arguments.quiet, "Nothing on stderr but errors");
}

std::vector<InputPath> tensor_paths(const CalibrationArguments& arguments) {
  std::vector<InputPath> paths;
  for (const std::string& path : arguments.tensors) paths.push_back({"--tensors", path});
  return paths;
}

CalibrationInput open_calibration(const CalibrationArguments& arguments, const Console& console,
                                  const ScaleFile* file) {
  check_source(arguments);
  // Why: by default glibc raises this with every large buffer that is freed, keeps such buffers for
  // the thread that had them, and the process grows to several layers.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  set_chunk_threads(arguments.threads);
  CalibrationInput input;
  CalibrationOptions& options = input.options;
  options.percentile = arguments.percentile;
  options.margin = arguments.margin;
  options.history = arguments.history;
  options.amax = arguments.amax == "signed" ? AmaxKind::kSigned : AmaxKind::kAbs;
  options.per_head = arguments.per_head;
  options.sample.max_rows = arguments.max_rows;
  options.sample.num_threads = arguments.threads;
  options.sample.seed = static_cast<std::uint64_t>(arguments.selection.seed.value_or(0));
  if (console.err_is_terminal && !is_dumb_terminal() && !arguments.quiet) {
    options.progress = [line = std::make_shared<LayerLine>(console.err)](
                           std::size_t done, std::size_t total) { line->show(done, total); };
  }
  if (file != nullptr) {
    options.format = file->format;
  } else if (!arguments.format.empty()) {
    options.format = *enum_from_name<ScaleFormat>(arguments.format);
  }
  const std::vector<std::string> wanted = expand_layers(arguments.layers);
  if (arguments.scenario.empty()) {
    const std::vector<std::filesystem::path> files(arguments.tensors.begin(),
                                                   arguments.tensors.end());
    input.observations = tensor_observations(files, options.format, wanted, find_kernel_rules);
  } else {
    open_scenario(arguments, file, wanted, input);
  }
  take_device(arguments.device, options);
  for (std::string& notice : input.observations->notices()) {
    input.notices.push_back(std::move(notice));
  }
  if (options.per_head && options.format != ScaleFormat::kKvCache) {
    fail(ErrorKind::kUsage, "--per-head: expected --format kv-cache with it, found {}",
         to_string(options.format));
  }
  return input;
}

void print_calibration(const CalibrationArguments& arguments, const CalibrationReport& report,
                       const std::string& chosen, const Console& console) {
  const bool moved = arguments.json == "-";
  if (!moved || !arguments.quiet) {
    write_scale_table(moved ? console.err : console.out, report, chosen);
  }
  if (!arguments.json.empty()) write_text(arguments.json, scale_report_json(report, chosen));
  if (arguments.quiet) return;
  for (const std::string& warning : scale_warnings(report, chosen)) {
    print_error(console.err, "warning: " + warning);
  }
}

void print_scale_notices(const CalibrationArguments& arguments,
                         const std::vector<std::string>& notices, const Console& console) {
  if (arguments.quiet) return;
  for (const std::string& notice : notices) print_notice(console.err, notice);
}

}  // namespace attnbench
