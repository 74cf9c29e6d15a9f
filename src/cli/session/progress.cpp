#include "cli/session/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "cli/terminal/console.h"
#include "cli/terminal/text.h"
#include "core/system/printable.h"

namespace attnbench {
namespace {

constexpr std::chrono::milliseconds kTick{500};

}  // namespace

double seconds_left(const ProgressState& state) {
  constexpr std::size_t kFewJobs = 2;
  constexpr double kLeastElapsed = 2;
  const bool is_early = state.done < kFewJobs || state.elapsed_s < kLeastElapsed;
  if (is_early || state.done > state.count) return std::numeric_limits<double>::quiet_NaN();
  return state.elapsed_s / static_cast<double>(state.done) *
         static_cast<double>(state.count - state.done);
}

std::string progress_line(const ProgressState& state, int width) {
  const double left = seconds_left(state);
  const std::string guess =
      std::isfinite(left) ? fmt::format(", about {} left", format_elapsed(left)) : "";
  const std::string head = fmt::format("[{}/{}] {}{}  ", state.index + 1, state.count,
                                       format_elapsed(state.elapsed_s), guess);
  const std::string tail = fmt::format(": {}", to_string(state.phase));
  const std::size_t columns = static_cast<std::size_t>(std::max(width, 1));
  const std::size_t taken = head.size() + tail.size();
  const std::string middle = cut_middle(state.id, columns > taken ? columns - taken : 0);
  return (head + middle + tail).substr(0, columns);
}

Progress::Progress(std::ostream& out, const Clock& clock, const ProgressOptions& options)
    : out_(out), clock_(clock), options_(options), started_s_(clock.now_s()) {
  if (options_.live) ticker_ = std::thread([this] { tick(); });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    erase();
  }
  stop_.notify_all();
  if (ticker_.joinable()) ticker_.join();
}

void Progress::job_started(std::size_t index, std::size_t count, const Job& job) {
  const std::lock_guard lock(mutex_);
  index_ = index;
  count_ = count;
  id_ = job.id;
  phase_ = Phase::kInputs;
  running_ = true;
  draw();
}

void Progress::job_resumed(std::size_t index, const Job& job) {
  const std::lock_guard lock(mutex_);
  index_ = index;
  id_ = job.id;
  running_ = true;
  draw();
}

void Progress::phase(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
  draw();
}

void Progress::job_finished(const Result& result) {
  const std::lock_guard lock(mutex_);
  running_ = false;
  ++done_;
  if (!options_.line_per_result) return;
  erase();
  const std::string time =
      result.timing ? fmt::format("  {:.1f} us", result.timing->median_us) : std::string();
  const std::string reason = result.reasons.empty() ? "" : "  " + join(result.reasons, "; ");
  out_ << fmt::format("{:<11} {}{}{}\n", to_string(result.status), printable(result.id), time,
                      printable(reason))
       << std::flush;
}

void Progress::notice(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!options_.notices || !noticed_.insert(text).second) return;
  erase();
  print_notice(out_, text);
  out_ << std::flush;
}

void Progress::draw() {
  if (!options_.live || stopping_) return;
  // One column stays free: some terminals wrap when the last one is written.
  out_ << "\r\x1b[2K"
       << progress_line(
              {index_, count_, done_, clock_.now_s() - started_s_, printable(id_), phase_},
              options_.width - 1)
       << std::flush;
  drawn_ = true;
}

void Progress::erase() {
  if (!drawn_) return;
  out_ << "\r\x1b[2K" << std::flush;
  drawn_ = false;
}

void Progress::tick() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kTick, [this] { return stopping_; })) {
    // Why not while timing: nothing else should run on this machine then.
    if (running_ && phase_ != Phase::kTiming) draw();
  }
}

}  // namespace attnbench
