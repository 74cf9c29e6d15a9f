#include <optional>
#include <utility>

#include "bench/loop/timing_tools.h"
#include "core/system/clock.h"
#include "core/system/parallel.h"
#include "measure/cpu_measure.h"
#include "measure/cpu_wait.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

class CpuTimingTools final : public TimingTools {
 public:
  CpuTimingTools(Ops& ops, int num_threads) : ops_(ops), num_threads_(num_threads) {}

  std::unique_ptr<Stopwatch> make_stopwatch(TimingMode, bool own_threads) override {
    // Why: more threads than cores wait for each other, whoever else there is, and should not
    // wait for work without sleeping.
    const int threads = num_threads_ > 0 ? num_threads_ : available_cores();
    const double cores = usable_cores();
    if (threads > cores) return std::make_unique<ClockStopwatch>(steady_clock());
    CpuWatch watch{thread_waits, process_cpu_us, cores, {}};
    if (!own_threads) watch.settle = [this] { ops_.settle(); };
    return std::make_unique<ClockStopwatch>(steady_clock(), std::move(watch));
  }
  CacheFlusher& flusher() override {
    if (!flusher_) flusher_ = make_cpu_cache_flusher();
    return *flusher_;
  }
  Ceilings ceilings(const Problem&, const Backend&) override {
    if (!ceilings_) ceilings_ = measure_cpu_ceilings(num_threads_);
    return {ceilings_->gflops * 1e-3, ceilings_->gbps};
  }

 private:
  Ops& ops_;
  int num_threads_;
  std::unique_ptr<CacheFlusher> flusher_;
  std::optional<CpuCeilings> ceilings_;
};

}  // namespace

std::unique_ptr<TimingTools> make_cpu_timing_tools(Ops& ops, int num_threads) {
  return std::make_unique<CpuTimingTools>(ops, num_threads);
}

}  // namespace attnbench
