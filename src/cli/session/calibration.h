// What `calibrate` and `scales` share: their options, the tensors that these name, the report.
//
// Tensors come from safetensors files or are drawn from a seed as a scenario says. Either way they
// are read layer by layer, since all layers of a model together need not fit into memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/screen.h"
#include "calibrate/calibrate.h"
#include "cli/options/shared_options.h"
#include "cli/outputs.h"
#include "cli/terminal/console.h"

namespace attnbench {

/// The options that both commands have.
struct CalibrationArguments {
  std::string scenario;
  std::vector<std::string> tensors;
  std::vector<std::string> layers;
  std::string format;
  std::string amax;
  double percentile = 99.99;
  double margin = 1.5;
  std::optional<int> history;
  bool per_head = false;
  std::int64_t max_rows = 128;
  int threads = 0;
  std::string device = "cpu";
  SelectionOptions selection;
  bool quiet = false;
  std::string json;
};

/// Everything but --method, --output and the arguments without a name.
void add_calibration_options(OptionTable& options, CalibrationArguments& arguments);

/// The files of --tensors.
std::vector<InputPath> tensor_paths(const CalibrationArguments& arguments);

/// The forwards, and the options with the format that the scenario or --format says; `format` wins
/// over both when given. Errors: kUsage unless there is either a scenario or --tensors; those of
/// loading them.
struct CalibrationInput {
  std::unique_ptr<Observations> observations;
  CalibrationOptions options;
  std::vector<std::string> notices;
  std::vector<InputPath> scenario_files;  // that were read
};
CalibrationInput open_calibration(const CalibrationArguments& arguments, const Console& console,
                                  const ScaleFile* file = nullptr);

/// Table, --json and what goes to stderr. `chosen` as in write_scale_table.
void print_calibration(const CalibrationArguments& arguments, const CalibrationReport& report,
                       const std::string& chosen, const Console& console);

/// What finds the largest value of a tensor by the operations of a device: max|x|, or max x.
/// Nothing for what the operation does not take: other types than float32, float16 and bfloat16,
/// other ranks than 3. `ops` is used by one thread at a time.
std::function<std::optional<float>(const Tensor&)> amax_on(std::shared_ptr<Ops> ops, AmaxKind kind);

/// What counts the patterns of a tensor by the operations of a device, as CalibrationOptions has
/// it. Nothing for types of other than 16 bits, by head for other ranks than 3, and for a device
/// without the shared memory that it takes. `ops` is used by one thread at a time.
std::function<std::optional<std::vector<std::int64_t>>(const Tensor&, bool by_head)> counts_on(
    std::shared_ptr<Ops> ops);

/// Attention errors by float32 attention of `ops` and the float64 rows of `screen`. Nothing where
/// the device does not take the problem. Both are used by one thread at a time.
ErrorOnDevice error_on(std::shared_ptr<Ops> ops, std::shared_ptr<RowScreen> screen);

/// "attnbench: notice: ..." for each, unless -q.
void print_scale_notices(const CalibrationArguments& arguments,
                         const std::vector<std::string>& notices, const Console& console);

}  // namespace attnbench
