#include "cli/session/calibration.h"

#include <malloc.h>

#include <algorithm>

#include "backends/backend.h"
#include "bench/judge/device_screen.h"
#include "calibrate/report.h"
#include "calibrate/tensor_observations.h"
#include "cli/cases/device.h"
#include "cli/cases/scenario_files.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/system/parallel.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace {

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

/// What the layers of a scenario's tensors are called: only multimodal encoders name theirs.
std::vector<std::string> layers_of(const Problem& problem, const ScaleFile* file) {
  if (problem.attention.type == AttentionType::kMmEncoder) return problem.mm_encoder.layer_names;
  if (file == nullptr) return {kUnnamedLayer};
  std::vector<std::string> layers;
  for (const LayerScales& layer : file->layers) layers.push_back(layer.layer);
  return layers;
}

/// Draws forwards from the cases of a scenario. What the options leave open, its first case says.
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
  input.observations = scenario_observations(std::move(cases), options.format, std::move(layers),
                                             options.history.value_or(1), find_kernel_rules);
}

/// What the operation amax takes.
bool is_served(const Tensor& tensor) {
  const Dtype dtype = tensor.dtype();
  return tensor.shape().size() == 3 &&
         (dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16);
}

/// Copies the tensor to the device and reduces it there.
float amax(Ops& ops, AmaxKind kind, const Tensor& tensor) {
  const std::unique_ptr<Buffer> source = ops.allocate(tensor.size_bytes(), "tensor");
  const std::unique_ptr<Buffer> result = ops.allocate(sizeof(float), "amax");
  ops.upload(*source, tensor.bytes(), tensor.size_bytes());
  attn::AmaxParams params{};
  params.element = static_cast<attn::Element>(tensor.dtype());
  params.source = source->data();
  params.num_tokens = tensor.dim(0);
  params.num_heads = static_cast<int>(tensor.dim(1));
  params.head_size = static_cast<int>(tensor.dim(2));
  params.head_stride = tensor.dim(2);
  params.token_stride = tensor.dim(1) * tensor.dim(2);
  params.is_signed = kind == AmaxKind::kSigned ? 1 : 0;
  params.amax = result->as<float>();
  ops.amax(params);
  ops.synchronize();
  float largest = 0;
  ops.download(&largest, *result, sizeof largest);
  return largest;
}

/// Of a whole tensor as rows of 8 elements, or of single ones.
attn::PatternCountParams shape_of_counts(const Tensor& tensor, bool by_head) {
  attn::PatternCountParams params{};
  if (by_head) {
    params.num_tokens = tensor.dim(0);
    params.num_heads = static_cast<int>(tensor.dim(1));
    params.head_size = static_cast<int>(tensor.dim(2));
  } else {
    params.num_heads = 1;
    params.head_size = tensor.num_elements() % 8 == 0 ? 8 : 1;
    params.num_tokens = tensor.num_elements() / params.head_size;
  }
  return params;
}

/// Where tensors are counted: nothing to do for the CPU.
void take_device(const std::string& name, CalibrationOptions& options) {
  const DeviceChoice device = choose_device(name, "");
  if (!device.refusals.empty()) fail(ErrorKind::kUnsupported, "{}", device.refusals.front());
  if (!device.is_cuda()) return;
  const std::shared_ptr<Ops> ops = open_ops(device, 0, "");
  options.device_amax = amax_on(ops, options.amax);
  options.device_counts = counts_on(ops);
  options.sample.device_error = error_on(ops, nullptr);
}

/// Tensors come from one place. Errors: kUsage.
void check_source(const CalibrationArguments& arguments) {
  if (arguments.scenario.empty() == arguments.tensors.empty()) {
    fail(ErrorKind::kUsage, "expected either SCENARIO or --tensors FILE..., found {}",
         arguments.scenario.empty() ? "neither" : "both");
  }
  if (arguments.scenario.empty() && !arguments.selection.set.empty()) {
    fail(ErrorKind::kUsage, "--set: expected SCENARIO with it, found --tensors");
  }
}

/// The tensors that are looked at, and the layers that they belong to.
void add_source_options(OptionTable& options, CalibrationArguments& arguments) {
  options.add({.names = "SCENARIO",
               .help = "Scenario (file or shipped name) whose seeded tensors are used",
               .target = &arguments.scenario});
  options.add({.names = "--tensors",
               .value = "FILE",
               .help = "Safetensors files with <layer>.q, .k, .v (MLA: .query, .kv_c, .k_pe and "
                       "weights), or those of run --save-tensors",
               .target = &arguments.tensors,
               .takes_several = true});
  options.add({.names = "--layers",
               .value = "NAME",
               .help = "Required layers: names, or a template such as 'blocks.{}.attn:32'",
               .target = &arguments.layers,
               .takes_several = true,
               .delimiter = ','});
}

/// How scales follow from the tensors.
void add_method_options(OptionTable& options, CalibrationArguments& arguments) {
  std::vector<std::string> formats;
  for (const auto& row : enum_rows(ScaleFormat{})) formats.emplace_back(row.name);
  options.add({.names = "--format",
               .value = "FORMAT",
               .help = join(formats, ", "),
               .target = &arguments.format,
               .choices = formats});
  options.add({.names = "--percentile",
               .value = "P",
               .help = "For --method percentile: the percentile of the magnitudes that takes the "
                       "place of the largest",
               .target = &arguments.percentile,
               .shows_default = true,
               .numbers = number_between(1e-9, 100)});
  options.add({.names = "--margin",
               .value = "M",
               .help = "Factor on every scale that a method finds",
               .target = &arguments.margin,
               .shows_default = true,
               .numbers = positive_number()});
  options.add(
      {.names = "--history",
       .value = "N",
       .help = "For --method amax: take the maximum over the last N files, or forwards of "
               "the scenario, as vLLM's ring buffer does (default: everything is one observation)",
       .target = &arguments.history,
       .numbers = whole_numbers(1, 1'000'000)});
  options.add({.names = "--amax",
               .value = "KIND",
               .help = "abs, or signed as in vLLM, which misses large negative values",
               .target = &arguments.amax,
               .choices = {"abs", "signed"}});
  options.add({.names = "--per-head",
               .help = "One scale per KV head for keys and values (kv-cache)",
               .target = &arguments.per_head});
}

}  // namespace

std::function<std::optional<float>(const Tensor&)> amax_on(std::shared_ptr<Ops> ops,
                                                           AmaxKind kind) {
  return [ops = std::move(ops), kind](const Tensor& tensor) -> std::optional<float> {
    if (!is_served(tensor)) return std::nullopt;
    return amax(*ops, kind, tensor);
  };
}

std::function<std::optional<std::vector<std::int64_t>>(const Tensor&, bool by_head)> counts_on(
    std::shared_ptr<Ops> ops) {
  using Counts = std::vector<std::int64_t>;
  return [ops = std::move(ops)](const Tensor& tensor, bool by_head) -> std::optional<Counts> {
    const bool has_patterns = tensor.dtype() == Dtype::kF16 || tensor.dtype() == Dtype::kBF16;
    if (!has_patterns || tensor.empty() || (by_head && tensor.shape().size() != 3)) {
      return std::nullopt;
    }
    attn::PatternCountParams params = shape_of_counts(tensor, by_head);
    Counts counts(static_cast<std::size_t>(params.num_heads) << 16);
    const std::size_t bytes = counts.size() * sizeof(std::int64_t);
    const std::unique_ptr<Buffer> source = ops->allocate(tensor.size_bytes(), "tensor");
    const std::unique_ptr<Buffer> result = ops->allocate(bytes, "pattern counts");
    ops->upload(*source, tensor.bytes(), tensor.size_bytes());
    ops->upload(*result, counts.data(), bytes);
    params.source = source->data();
    params.counts = result->as<attn::i64>();
    try {
      ops->count_patterns(params);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      return std::nullopt;
    }
    ops->synchronize();
    ops->download(counts.data(), *result, bytes);
    return counts;
  };
}

ErrorOnDevice error_on(std::shared_ptr<Ops> ops, std::shared_ptr<RowScreen> screen) {
  return [ops = std::move(ops), given = std::move(screen)](
             const AttentionMath& math, const ReferenceInputs& exact,
             const ReferenceInputs& quantised) -> std::optional<OutputError> {
    try {
      const Tensor output = attend_in_float32(*ops, math, quantised);
      // A screen keeps what it uploads, which is of one sample.
      const std::shared_ptr<RowScreen> own =
          given ? given : std::shared_ptr<RowScreen>(make_device_screen(ops));
      const ScreenTable table = own->compare(math, exact, {&output});
      OutputError error;
      for (const ScreenedRow& row : table.of) {
        error.squared_error += row.error * row.error;
        error.squared_reference += row.expected * row.expected;
        error.max_abs = std::max(error.max_abs, row.largest);
      }
      return error;
    } catch (const Error& error) {
      const bool is_refusal =
          error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kCapacity;
      if (!is_refusal) throw;
      return std::nullopt;
    }
  };
}

void add_calibration_options(OptionTable& options, CalibrationArguments& arguments) {
  add_source_options(options, arguments);
  add_method_options(options, arguments);
  options.add({.names = "--max-rows",
               .value = "N",
               .help = "Rows per forward pass over which the attention error is computed",
               .target = &arguments.max_rows,
               .shows_default = true,
               .numbers = whole_numbers(1, 1'000'000'000)});
  options.add(
      {.names = "--device",
       .value = "DEVICE",
       .help =
           "cpu, auto or cuda[:N]: where elements are counted and attention errors are computed",
       .target = &arguments.device,
       .shows_default = true,
       .choices = {"cpu", "auto", "cuda"},
       .takes_others = true});
  add_threads_option(options, "", arguments.threads);
  options.add({.names = "--set",
               .value = "KEY=VALUE",
               .help = "Override a field of the scenario (repeatable)",
               .target = &arguments.selection.set});
  options.add({.names = "--seed",
               .value = "N",
               .help = "Seed of the scenario's tensors and of the sampled rows, from 0",
               .target = &arguments.selection.seed,
               .numbers = numbers_from_zero()});
  options.add({.names = "--json",
               .value = "FILE",
               .help = "Write the report as JSON (- = standard output)",
               .target = &arguments.json});
  options.add(
      {.names = "-q,--quiet", .help = "Print only errors on stderr", .target = &arguments.quiet});
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
    if (file == nullptr && arguments.format.empty() && hold_latents(files)) {
      options.format = ScaleFormat::kKvCache;
    }
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
