// The CPU's tools, those of a CUDA device, and the measurement that uses either.
#include "bench/loop/timing_tools.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "backends/mla/plan.h"
#include "bench/loop/ceiling_meter.h"
#include "bench/ranks/ranked_stopwatch.h"
#include "core/system/clock.h"
#include "core/system/parallel.h"
#include "inputs/cache/stored_kv.h"
#include "measure/cpu_measure.h"
#include "measure/cpu_wait.h"
#include "measure/cuda_ceilings.h"
#include "measure/cuda_measure.h"
#include "metrics/peak.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

/// How many times higher a ceiling may be than the best that was measured where other programs held
/// up every run: beside sixteen on two cores it came out at a thirtieth of what it is.
constexpr double kBesideOthers = 40;

class CpuTimingTools final : public TimingTools {
 public:
  CpuTimingTools(Ops& ops, int num_threads, std::shared_ptr<CeilingMeter> meter)
      : ops_(ops), num_threads_(num_threads), meter_(std::move(meter)) {}

  std::unique_ptr<Stopwatch> make_stopwatch(const Problem&, bool own_threads) override {
    // Why: more threads than cores wait for each other, whoever else there is, and should not
    // wait for work without sleeping.
    const int threads = num_threads_ > 0 ? num_threads_ : available_cores();
    const double cores = usable_cores();
    if (threads > cores) return std::make_unique<ClockStopwatch>(steady_clock());
    CpuWatch watch{thread_waits, process_cpu_us, cores, {}};
    if (!own_threads) watch.settle = [this] { ops_.settle(); };
    return std::make_unique<ClockStopwatch>(steady_clock(), std::move(watch));
  }
  CacheFlusher& flusher(L2Mode mode) override {
    if (!flusher_) flusher_ = make_cpu_cache_flusher();
    if (mode != L2Mode::kClean) return *flusher_;
    if (!clean_flusher_) clean_flusher_ = make_cpu_clean_flusher(*flusher_);
    return *clean_flusher_;
  }
  std::unique_ptr<SampleMemory> make_sample_memory() override { return make_cpu_sample_memory(); }
  std::size_t most_poison() const override { return std::size_t{64} << 20; }
  Ceilings ceilings(const Problem&, const Backend&) override {
    if (!ceilings_) measure_again();
    return {ceilings_->gflops * 1e-3, ceilings_->gbps};
  }
  Physics physics(const Problem& problem, const Backend& backend) override {
    const bool has_codes = problem.kv_cache.int8_level > 0;
    const std::optional<std::size_t> cache = total_cache_bytes();
    if (!ceilings_) measure_again();
    // A user's kernel may use cores that --threads leaves alone: that is no miracle.
    const double cores =
        num_threads_ > 0 ? std::max(1.0, 1.0 * available_cores() / num_threads_) : 1;
    const Ceilings all = ceilings(problem, backend);
    const Ceilings sure{
        cores * all.tflops * (ceilings_->quiet_gflops > 0 ? 1 : kBesideOthers),
        cores * all.gbps * (ceilings_->quiet_gbps > 0 ? 1 : kBesideOthers),
    };
    Physics physics{sure, faster_units(cpu_flags(), has_codes), {}, false};
    if (cache) physics.cache_bytes = static_cast<double>(*cache);
    return physics;
  }
  void measure_again() override {
    const CpuCeilings measured = meter_ ? meter_->measure() : measure_cpu_ceilings(num_threads_);
    ceilings_ = best_of(measured, ceilings_.value_or(CpuCeilings{}));
  }

 private:
  Ops& ops_;
  int num_threads_;
  std::shared_ptr<CeilingMeter> meter_;
  std::unique_ptr<CacheFlusher> flusher_;
  std::unique_ptr<CacheFlusher> clean_flusher_;  // flushes by the other
  std::optional<CpuCeilings> ceilings_;
};

bool has_fp8_scores(const Problem& problem, const Backend& backend) {
  const MlaCapability* mla = backend.mla_capability(problem);
  if (mla != nullptr) return has_fp8_decodes(*mla, problem);
  return problem.kv_cache.int8_level == 0 && query_is_quantised(problem, backend.kernel_rules());
}

/// What 16-bit products are made of, as far as the peak of the matrix units depends on it, or those
/// of codes.
PeakType peak_type(const Problem& problem, const Backend& backend) {
  if (has_fp8_scores(problem, backend)) return PeakType::kE4M3;
  return problem.attention.dtype == Dtype::kF32 ? PeakType::kF32 : PeakType::kF16;
}

/// int8 scores are products of codes, but their weights and values have 16 bits (semantics §11.5).
bool has_int8_scores(const Problem& problem) { return problem.kv_cache.int8_level > 0; }

/// The products whose rates a case is held against.
std::set<MatrixType> matrix_types(const Problem& problem, const Backend& backend) {
  std::set<MatrixType> types;
  if (has_fp8_scores(problem, backend)) {
    types = {MatrixType::kE4M3};
  } else if (problem.attention.dtype == Dtype::kF32) {
    // Also those that products of f32 may be made of.
    types = {MatrixType::kF32, MatrixType::kBF16, MatrixType::kF16};
  } else if (problem.attention.dtype == Dtype::kF16) {
    types = {MatrixType::kF16};
  } else {
    types = {MatrixType::kBF16};
  }
  if (has_int8_scores(problem)) types.insert(MatrixType::kI8);
  return types;
}

/// The rate of the matrix units for it.
double matrix_rate(const CudaCeilings& ceilings, const Problem& problem, const Backend& backend) {
  if (has_fp8_scores(problem, backend)) return ceilings.fp8_tflops;
  switch (problem.attention.dtype) {
    case Dtype::kF16:
      return ceilings.fp16_tflops;
    case Dtype::kF32:
      return ceilings.fp32_tflops;
    default:
      return ceilings.bf16_tflops;
  }
}

double share_of_scores(const Problem& problem) {
  const auto& attention = problem.attention;
  return 1.0 * attention.head_size / (attention.head_size + attention.v_head_size);
}

/// Products of f32 made of three of 16 bits each, which keep about 22 bits of every factor.
double split_f32_rate(const CudaCeilings& ceilings) {
  constexpr double kProducts = 3;
  return std::max(ceilings.bf16_tflops, ceilings.fp16_tflops) / kProducts;
}

class CudaTimingTools final : public TimingTools {
 public:
  explicit CudaTimingTools(CudaOps& ops)
      : ops_(ops), flushers_(ops.runtime(), ops.stream(), ops.kernels()) {}

  std::unique_ptr<Stopwatch> make_stopwatch(const Problem& problem, bool) override {
    // Why once: to open the library takes 10 ms.
    if (!nvml_) nvml_ = std::make_shared<const Nvml>(ops_.runtime().device().pci_bus_id);
    return make_cuda_stopwatch(ops_.runtime(), ops_.stream(), steady_clock(), problem.timing.mode,
                               &ops_.kernels(), rest_of(problem), nvml_);
  }
  CacheFlusher& flusher(L2Mode mode) override { return flushers_.leaving(mode); }
  std::unique_ptr<SampleMemory> make_sample_memory() override {
    return make_cuda_sample_memory(ops_);
  }
  /// As much as is overwritten for a cold cache.
  std::size_t most_poison() const override { return std::size_t{256} << 20; }
  Ceilings ceilings(const Problem& problem, const Backend& backend) override {
    measure_new(matrix_types(problem, backend));
    const DeviceInfo& device = ops_.runtime().device();
    double rate = matrix_rate(*ceilings_, problem, backend);
    double per_cycle = operations_per_cycle(device.sm, peak_type(problem, backend));
    if (has_int8_scores(problem)) {
      const double share = share_of_scores(problem);
      rate = mixed_rate(share, ceilings_->int8_tops, rate);
      per_cycle = mixed_rate(share, operations_per_cycle(device.sm, PeakType::kI8), per_cycle);
    }
    return {rate, ceilings_->memory_gbps(), per_cycle * device.num_sms};
  }
  Physics physics(const Problem& problem, const Backend& backend) override {
    Physics physics{ceilings(problem, backend), 1, {}, true};
    physics.cache_bytes = static_cast<double>(ops_.runtime().device().l2_bytes);
    const double rate = physics.ceilings.tflops;
    const double in_parts = split_f32_rate(*ceilings_);
    if (problem.attention.dtype == Dtype::kF32 && rate > 0 && in_parts > rate) {
      physics.faster_units = in_parts / rate;
    }
    return physics;
  }
  /// All that was measured before.
  void measure_again() override { measure({true, measured_}); }

 private:
  /// Of these what is not known yet: a run of one type is not to wait for the products of four.
  void measure_new(std::set<MatrixType> types) {
    std::erase_if(types, [this](MatrixType type) { return measured_.contains(type); });
    if (!ceilings_ || !types.empty()) measure({!ceilings_, std::move(types)});
  }
  void measure(const WantedCeilings& wanted) {
    const CudaCeilings now =
        measure_cuda_ceilings(ops_.runtime(), ops_.stream(), ops_.kernels(), wanted);
    ceilings_ = ceilings_ ? best_of(now, *ceilings_) : now;
    measured_.insert(wanted.products.begin(), wanted.products.end());
  }

  /// Why one for all peers: they are compared, so they rest alike.
  std::shared_ptr<RestPolicy> rest_of(const Problem& problem) {
    if (problem.timing.pace == Pace::kSustained) return nullptr;
    if (rest_problem_ != &problem) rest_ = std::make_shared<RestPolicy>();
    rest_problem_ = &problem;
    return rest_;
  }

  CudaOps& ops_;
  CudaFlushers flushers_;
  std::optional<CudaCeilings> ceilings_;
  std::set<MatrixType> measured_;  // the products in ceilings_
  std::shared_ptr<const Nvml> nvml_;
  const Problem* rest_problem_ = nullptr;
  std::shared_ptr<RestPolicy> rest_;  // of rest_problem_
};

}  // namespace

std::unique_ptr<TimingTools> make_cpu_timing_tools(Ops& ops, int num_threads,
                                                   std::shared_ptr<CeilingMeter> meter) {
  return std::make_unique<CpuTimingTools>(ops, num_threads, std::move(meter));
}

std::unique_ptr<TimingTools> make_cuda_timing_tools(CudaOps& ops) {
  return std::make_unique<CudaTimingTools>(ops);
}

std::unique_ptr<Ops> open_device(const BenchOptions& options) {
  if (options.make_ops) return options.make_ops();
  return make_cpu_ops(options.num_threads, options.device_facts.num_sms, options.device_facts.sm);
}

std::unique_ptr<TimingTools> make_tools(const BenchOptions& options, Ops& ops) {
  if (options.make_timing_tools) return options.make_timing_tools(ops);
  return make_cpu_timing_tools(ops, options.num_threads, options.ceiling_meter);
}

namespace {

std::unique_ptr<SampleChecks> make_checks(Pipeline& pipeline, TimingTools& tools,
                                          SampleChecking checking) {
  if (checking == SampleChecking::kNone) return nullptr;
  std::optional<SampleSide> side = pipeline.sample_side();
  if (!side) return nullptr;
  return std::make_unique<SampleChecks>(pipeline, std::move(*side), tools.make_sample_memory(),
                                        tools.most_poison(), checking == SampleChecking::kAll);
}

CacheFlusher* flusher_of(const Problem& problem, TimingTools& tools) {
  const L2Mode mode = problem.timing.l2;
  return mode == L2Mode::kWarm ? nullptr : &tools.flusher(mode);
}

}  // namespace

JobTiming::JobTiming(const Problem& problem, Pipeline& pipeline, TimingTools& tools,
                     const BenchOptions& options, int rounds)
    : stopwatch_(over_ranks(pipeline, tools.make_stopwatch(problem, pipeline.users() != nullptr))),
      checks_(make_checks(pipeline, tools, options.sample_checks)),
      measurement_(pipeline.steps(), *stopwatch_, flusher_of(problem, tools), steady_clock(),
                   {pass_share(problem.timing, options.pass, options.passes), options.should_stop,
                    rounds, checks_.get()}) {}

}  // namespace attnbench
