#include "bench/cases/screening.h"

#include <random>

#include "bench/bench.h"
#include "bench/cases/probe.h"
#include "core/error.h"
#include "inputs/place_needles.h"

namespace attnbench {
namespace {

/// With every row seen by the device, the reference has two tasks left: to vouch for the screening
/// and to judge what that finds. A handful of rows does the first.
constexpr RowBudget kBesideDevice{10e9, 16};
/// On two cores about two seconds in float32.
constexpr RowBudget kScreenedOnCpu{120e9, 64};

bool has_all_rows(const Problem& problem, const std::vector<std::int32_t>& rows) {
  return static_cast<std::int64_t>(rows.size()) >= problem.num_tokens();
}

}  // namespace

JudgeTools judge_tools(const BenchOptions& options) {
  JudgeTools tools;
  tools.make_screen = options.make_screen;
  tools.draw_seed = [given = options.sample_seed]() -> std::uint64_t {
    if (given) return *given;
    return std::random_device()() >> 1;  // --sample-seed takes 31 bits
  };
  return tools;
}

const RowSample& Screening::sample(const Problem& problem) {
  if (!sample_) {
    seed_ = tools_.draw_seed ? tools_.draw_seed() : problem.inputs.seed;
    const RowBudget budget = tools_.make_screen ? kBesideDevice : RowBudget{};
    if (has_needles(problem.inputs) && has_probe(problem)) {
      const std::vector<std::int32_t> rows = probe_rows(problem, budget);  // no draw: needles
      sample_ = RowSample{rows, rows};
    } else {
      sample_ = sample_rows(problem, seed_, budget);
      is_sample_ = !has_all_rows(problem, sample_->rows);
    }
  }
  return *sample_;
}

std::optional<std::uint64_t> Screening::drawn_seed() const {
  if (!is_sample_) return std::nullopt;
  return seed_;
}

std::vector<std::int32_t> Screening::affordable_rows(const Problem& problem) const {
  Problem unlimited = problem;  // max_rows is of the reference, which costs more
  unlimited.validation.max_rows.reset();
  return select_rows(unlimited, seed_, kScreenedOnCpu);
}

/// Sets `too_large` where the device has too little memory.
std::optional<ScreenTable> Screening::on_device(
    const std::function<ScreenTable(RowScreen& screen)>& compare, bool& too_large) {
  try {
    if (!screen_) screen_ = tools_.make_screen();
    return compare(*screen_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kCapacity) throw;
    screen_.reset();
    too_large = true;
  }
  return std::nullopt;
}

std::optional<ScreenTable> Screening::compare_on_device(
    const Problem& problem, const std::function<ScreenTable(RowScreen& screen)>& compare) {
  if (only_sample_ || has_all_rows(problem, sample(problem).rows)) return std::nullopt;
  if (!tools_.make_screen || !compare || too_large_) return std::nullopt;
  return on_device(compare, too_large_);
}

std::optional<ScreenTable> Screening::compare_sample(
    const std::function<ScreenTable(RowScreen& screen)>& compare) {
  if (!can_compare_samples()) return std::nullopt;
  return on_device(compare, too_large_for_samples_);
}

void Screening::end_samples() {
  if (screen_) screen_->release();
}

std::optional<ScreenTable> Screening::compare(const Problem& problem, const ScreenedOutput& output,
                                              const Ways& ways) {
  if (only_sample_ || has_all_rows(problem, sample(problem).rows)) return std::nullopt;
  std::optional<ScreenTable> table = compare_on_device(problem, ways.on_device);
  if (table) return table;
  const ReferenceOutput* expected = ways.on_cpu(affordable_rows(problem));
  if (expected == nullptr) return std::nullopt;
  return screen_by(*expected, output);
}

}  // namespace attnbench
