// What a run says on stderr while it runs: a live line on a terminal, a line per result with -v.
//
// A thread redraws the live line twice a second, so that its clock moves while a case takes long,
// but never during timing: the machine should do nothing else then.
#pragma once

#include <condition_variable>
#include <mutex>
#include <ostream>
#include <set>
#include <string>
#include <thread>

#include "bench/bench.h"
#include "core/system/clock.h"

namespace attnbench {

struct ProgressOptions {
  bool live = false;  // rewrite one line in place; for terminals
  bool line_per_result = false;
  bool notices = true;  // each text once
  int width = 80;       // of the live line
};

/// Draws from the events of the bench. Thread-safe, since the ticking thread draws too.
class Progress final : public BenchObserver {
 public:
  Progress(std::ostream& out, const Clock& clock, const ProgressOptions& options);
  /// Erases the live line.
  ~Progress() override;

  void job_started(std::size_t index, std::size_t count, const Job& job) override;
  void job_resumed(std::size_t index, const Job& job) override;
  void phase(Phase phase) override;
  void job_finished(const Result& result) override;
  void notice(const std::string& text) override;

 private:
  void draw();   // with mutex_ held
  void erase();  // with mutex_ held
  void tick();

  std::ostream& out_;
  const Clock& clock_;
  const ProgressOptions options_;
  const double started_s_;

  std::mutex mutex_;
  std::condition_variable stop_;
  std::size_t done_ = 0;  // jobs that finished
  std::size_t index_ = 0;
  std::size_t count_ = 0;
  std::string id_;
  Phase phase_ = Phase::kInputs;
  StatusCounts counts_;
  std::set<std::string> noticed_;
  bool running_ = false;
  bool drawn_ = false;
  bool stopping_ = false;
  std::thread ticker_;
};

/// What the live line says.
struct ProgressState {
  std::size_t index = 0;  // of the job
  std::size_t count = 0;  // of all jobs
  std::size_t done = 0;   // that finished
  double elapsed_s = 0;
  std::string id;
  Phase phase = Phase::kInputs;
};

/// What the jobs that are left will take if they take as long as those that finished; NaN until a
/// few have, and enough time has passed for a guess.
double seconds_left(const ProgressState& state);

/// The live line without its control characters, at most `width` columns:
/// "[3/24] 12s, about 1m30s left  smoke/q8k/FLASH_ATTN: reference".
std::string progress_line(const ProgressState& state, int width);

}  // namespace attnbench
