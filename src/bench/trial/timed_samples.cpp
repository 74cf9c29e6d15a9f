// Times first, then outputs.
#include "bench/trial/timed_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "backends/traffic.h"
#include "core/error.h"
#include "measure/measure.h"
#include "metadata/parts/dcp_model.h"
#include "metrics/peak.h"

namespace attnbench {
namespace {

bool is_time(double us) { return std::isfinite(us) && us >= 0; }

bool are_times(const std::vector<double>& times_us) {
  return std::all_of(times_us.begin(), times_us.end(), is_time);
}

bool are_clocks(const std::vector<double>& mhz) {
  return std::all_of(mhz.begin(), mhz.end(),
                     [](double clock) { return std::isfinite(clock) && clock > 0; });
}

void check(bool holds, const char* what) {
  if (!holds) fail(ErrorKind::kInternal, "timing was handed in with {}", what);
}

}  // namespace

Timing checked_timing(Timing raw) {
  const std::size_t count = raw.samples_us.size();
  check(count > 0, "no sample");
  check(are_times(raw.samples_us), "a sample that is no time");
  const bool rounds_fit = raw.rounds.empty() ||
                          (std::all_of(raw.rounds.begin(), raw.rounds.end(),
                                       [&](std::int64_t n) {
                                         return n >= 0 && n <= static_cast<std::int64_t>(count);
                                       }) &&
                           std::accumulate(raw.rounds.begin(), raw.rounds.end(), std::int64_t{0}) ==
                               static_cast<std::int64_t>(count));
  check(rounds_fit, "rounds that are not its samples");
  check(raw.waits_us.empty() || (raw.waits_us.size() == count && are_times(raw.waits_us)),
        "waits that are not its samples'");
  check(raw.samples_sm_mhz.empty() ||
            (raw.samples_sm_mhz.size() == count && are_clocks(raw.samples_sm_mhz)),
        "clocks that are not its samples'");
  check(std::all_of(raw.steps.begin(), raw.steps.end(),
                    [](const StepTiming& step) { return !(step.median_us < 0); }),
        "a step whose time is negative");
  const Timing figures = summarize_samples(raw.samples_us);
  raw.median_us = figures.median_us;
  raw.min_us = figures.min_us;
  raw.q1_us = figures.q1_us;
  raw.q3_us = figures.q3_us;
  raw.mean_us = figures.mean_us;
  raw.stdev_us = figures.stdev_us;
  raw.noise = figures.noise;
  raw.cycles = median_cycles(raw.samples_us, raw.samples_sm_mhz);
  return raw;
}

void add_prediction(const Problem& problem, Timing& timing) {
  timing.by_name.erase("predicted_us");
  const bool is_simulated = problem.dcp.world_size > 1 &&
                            problem.dcp.transport == DcpTransport::kSimulated &&
                            problem.attention.type != AttentionType::kOp;
  if (!is_simulated) return;
  std::vector<DcpStep> steps;
  for (const StepTiming& step : timing.steps) steps.push_back({step.name, step.median_us});
  if (steps.empty()) return;
  timing.by_name["predicted_us"] = dcp_critical_path_us(problem, steps, kNvLink);
}

namespace {

/// Devices that share the work of the case: real ranks have one each.
int num_devices(const Problem& problem) {
  return problem.dcp.transport == DcpTransport::kSimulated ? 1 : problem.dcp.world_size;
}

/// Of several devices like the one that was measured.
Ceilings together(Ceilings one, int devices) {
  one.tflops *= devices;
  one.gbps *= devices;
  one.per_cycle *= devices;
  return one;
}

Physics together(Physics one, int devices) {
  one.ceilings = together(one.ceilings, devices);
  if (one.cache_bytes) *one.cache_bytes *= devices;
  return one;
}

}  // namespace

void note_ranks(const Problem& problem, Timing& timing) {
  const bool over_mpi = problem.dcp.transport == DcpTransport::kMpi;
  if (over_mpi && num_devices(problem) > 1) timing.l2 = "warm";
}

namespace {

/// How often ceilings are measured anew before a time that beats them counts against a kernel.
constexpr int kCeilingsAgain = 3;

/// Inputs of query rows, their results, and a block of keys and values of every request, in bytes:
/// the part of the traffic that may have stayed in a cache when a run is over, or that was written
/// just before. Of a single operation, all of it.
double cacheable_bytes(const Problem& problem, const Traffic& traffic) {
  if (problem.attention.type == AttentionType::kOp) return traffic.unique_bytes;
  double keys = 0;
  for (const Request& request : problem.batch) keys += static_cast<double>(request.seq_len);
  const double block = keys > 0 ? traffic.kv_bytes / keys * problem.kv_cache.block_size : 0;
  const AttentionSpec& a = problem.attention;
  const bool latents = a.type == AttentionType::kMla;
  const int rank = problem.mla.kv_lora_rank;
  const int inputs = latents ? rank + problem.mla.qk_rope_head_dim : a.head_size;
  const int results = latents ? rank : a.v_head_size;
  const double row = static_cast<double>(a.num_heads) * (inputs + results);
  return row * static_cast<double>(dtype_size(a.dtype)) *
             static_cast<double>(problem.num_tokens()) +
         block * static_cast<double>(problem.batch.size());
}

}  // namespace

std::string judge_speed(const Problem& problem, const Backend& backend, DeviceSpeed* speed,
                        Result& result) {
  const int devices = num_devices(problem);
  const Traffic traffic = attention_traffic(problem, backend);
  const Work work{attention_flops(problem, backend), traffic.unique_bytes, traffic.kv_bytes,
                  problem.num_tokens(), cacheable_bytes(problem, traffic)};
  const double median_us = result.timing->median_us;
  const bool is_cold = result.timing->began_cold();
  Ceilings ceilings;
  Belief belief;
  if (speed != nullptr) {
    const auto judge = [&] {
      ceilings = together(speed->ceilings(problem, backend), devices);
      Physics physics = together(speed->physics(problem, backend), devices);
      physics.clock_mhz = result.timing->cycles / median_us;
      belief = judge_physics(work, median_us, is_cold, physics);
    };
    judge();
    for (int again = 0; again < kCeilingsAgain && !belief.accusation.empty(); ++again) {
      speed->measure_again();
      judge();
    }
  }
  result.throughput = compute_throughput(work, median_us, ceilings);
  result.throughput->peak_pct = peak_share(work.flops, result.timing->cycles, ceilings.per_cycle);
  if (std::isfinite(belief.physics_pct)) {
    result.throughput->by_name["physics_pct"] = belief.physics_pct;
  }
  return belief.accusation;
}

std::optional<SampleFinding> judge_timed_sample(CaseRun& case_run, std::int64_t number,
                                                std::uint64_t nonce, const PipelineOutput& output) {
  const std::optional<SampleVerdict> verdict = case_run.judge_sample(output, nonce);
  if (!verdict) return std::nullopt;
  if (!verdict->is_judged) return SampleFinding{};
  const ErrorStats& error = verdict->judgement.error;
  SampleFinding finding{
      "", SampleCheck{number, error.row_error, error.row_limit, verdict->screened_rows}};
  const std::vector<std::string>& reasons = verdict->judgement.reasons;
  if (!output.defect.empty() || !reasons.empty()) {
    const bool cut_out = output.defect.empty() && verdict->request > 0;
    finding.reason = fmt::format(
        "timed sample {}{}: {}", number,
        cut_out ? fmt::format(", request {} (which is request 0 here)", verdict->request) : "",
        output.defect.empty() ? reasons.front() : output.defect);
  }
  return finding;
}

std::string notice_of_host_time(const Result& result) {
  if (!result.plugin || !result.timing || result.device == "cpu") return "";
  const Timing& timing = *result.timing;
  if (timing.mode == "graph" || timing.launch_overhead_us < timing.total_us) return "";
  return fmt::format(
      "{}: run() takes {:.0f} us on the host for {:.0f} us of work on the device: the times are of "
      "the device, and an engine without CUDA graphs would wait for the host",
      result.id, timing.launch_overhead_us, timing.total_us);
}

}  // namespace attnbench
