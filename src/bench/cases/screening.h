// What the cases of every family share when they judge an output: which rows the reference checks,
// and how all the others are seen.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bench/judge/screen.h"
#include "bench/judge/screened_judgement.h"
#include "core/problem/problem.h"
#include "reference/attention.h"
#include "reference/row_selection.h"

namespace attnbench {

struct BenchOptions;

/// What a judge has beside the problem.
struct JudgeTools {
  /// Opens the device for screening, once a case; empty = the CPU screens.
  std::function<std::unique_ptr<RowScreen>()> make_screen;
  /// Called once a case, when its first output is judged; empty = the problem's own seed.
  std::function<std::uint64_t()> draw_seed;
};

/// Those of a run: its device, and its seed or one that is drawn.
JudgeTools judge_tools(const BenchOptions& options);

/// The same maths with nothing rounded: what the CPU screens by.
inline constexpr EmulationRule kInFloat32{Dtype::kF32, Dtype::kF32};

/// The rows of one case. Rows are drawn when they are first needed, which is when an output is
/// there.
class Screening {
 public:
  explicit Screening(JudgeTools tools) : tools_(std::move(tools)) {}
  /// Only `rows` are compared, by the reference.
  explicit Screening(const std::vector<std::int32_t>& rows)
      : only_sample_(true), sample_(RowSample{rows, rows}) {}

  /// Rows that the reference checks.
  const RowSample& sample(const Problem& problem);
  /// What rows were drawn with; nothing where none were, since all of them are checked.
  std::optional<std::uint64_t> drawn_seed() const;

  /// The ways to see the rows of an output.
  struct Ways {
    /// All of them, on the device; empty where it cannot.
    std::function<ScreenTable(RowScreen& screen)> on_device;
    /// The results of some rows by kInFloat32, kept by the caller for the next output; null when
    /// should_stop said so.
    std::function<const ReferenceOutput*(const std::vector<std::int32_t>& rows)> on_cpu;
  };
  /// A table of all rows by the device; nothing where there is none, where it has too little
  /// memory, or where the reference sees every row.
  std::optional<ScreenTable> compare_on_device(
      const Problem& problem, const std::function<ScreenTable(RowScreen& screen)>& compare);
  /// The same of a part of a timed sample, where there is a device.
  std::optional<ScreenTable> compare_sample(
      const std::function<ScreenTable(RowScreen& screen)>& compare);
  bool can_compare_samples() const {
    return tools_.make_screen && !too_large_ && !too_large_for_samples_;
  }
  /// Leaves the device to what is timed next.
  void end_samples();
  /// A table of all rows, or of as many as the CPU can afford; nothing where the reference sees all
  /// of them.
  std::optional<ScreenTable> compare(const Problem& problem, const ScreenedOutput& output,
                                     const Ways& ways);

 private:
  std::optional<ScreenTable> on_device(const std::function<ScreenTable(RowScreen& screen)>& compare,
                                       bool& too_large);
  std::vector<std::int32_t> affordable_rows(const Problem& problem) const;

  JudgeTools tools_;
  std::unique_ptr<RowScreen> screen_;
  bool too_large_ = false;  // for the device
  bool too_large_for_samples_ = false;
  bool only_sample_ = false;
  bool is_sample_ = false;
  std::uint64_t seed_ = 0;
  std::optional<RowSample> sample_;
};

}  // namespace attnbench
