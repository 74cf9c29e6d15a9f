// Results and result files for tests of the gate.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/result/result_file.h"
#include "gate/gate.h"
#include "gate/gate_testing.h"

namespace attnbench::gate_testing {

/// Ten samples around `median_us`, half a percent wide.
inline std::vector<double> samples_around(double median_us) {
  std::vector<double> samples;
  for (int i = -5; i <= 4; ++i) samples.push_back(median_us * (1 + 0.0005 * (i + 0.5)));
  return samples;
}

/// Thirty samples around a median, of which the last `held_up` waited for their cores: `wait_us` by
/// the thread that waited longest, and as long in the sample.
inline Timing held_up_timing(double median_us, std::size_t held_up, double wait_us) {
  std::vector<double> samples;
  for (int i = 0; i < 3; ++i) {
    for (const double sample : samples_around(median_us)) samples.push_back(sample);
  }
  std::vector<double> waits(samples.size(), 0);
  for (std::size_t i = samples.size() - held_up; i < samples.size(); ++i) {
    samples[i] += wait_us;
    waits[i] = wait_us;
  }
  Timing timing = timing_of(std::move(samples));
  timing.waits_us = std::move(waits);
  return timing;
}

inline Result result_of(const std::string& name, double median_us = 100) {
  Result result;
  result.id = "s/" + name + "/B";
  result.scenario = "s";
  result.case_name = name;
  result.backend = "B";
  result.device = "cpu";
  result.status = Status::kPassed;
  result.problem_json =
      R"({"attention":{"head_size":64},"timing":{"samples":20,"l2":"cold"},"description":"d"})";
  result.timing = timing_of(samples_around(median_us));
  result.error = ErrorStats{};
  result.error->err_ratio = 0.8;
  result.error->nmse = 1e-6;
  result.error->rms_rel = 1e-3;
  result.error->checked_rows = result.error->total_rows = 64;
  return result;
}

/// The NMSE and what it is the square of.
inline void set_nmse(std::optional<ErrorStats>& error, double nmse) {
  error->nmse = nmse;
  error->rms_rel = std::sqrt(nmse);
}

/// On a GPU: every sample at `sm_mhz`.
inline Result at_clock(Result result, double sm_mhz) {
  result.timing->samples_sm_mhz.assign(result.timing->samples_us.size(), sm_mhz);
  result.timing->cycles = result.timing->median_us * sm_mhz;
  return result;
}

inline Result with_status(Result result, Status status, const std::string& reason = "") {
  result.status = status;
  if (status != Status::kPassed && status != Status::kUnverified) {
    result.timing.reset();
    result.reasons = {reason};
  }
  return result;
}

inline ResultFile file_of(std::vector<Result> results) {
  ResultFile file;
  file.path = "file.json";
  Environment& environment = file.run.environment;
  environment.hostname = "host";
  environment.cpu = {"CPU", 4, "avx2"};
  environment.compiler = "g++ 13";
  environment.fingerprint = "f00";
  file.results = std::move(results);
  return file;
}

inline Verdict verdict_of(const Result& before, const Result& after,
                          const GateOptions& options = {}) {
  const GateReport report = judge_results(file_of({before}), file_of({after}), options);
  return report.verdicts.at(0);
}

}  // namespace attnbench::gate_testing
