// --plant-fault: which jobs get a faulty backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/loop/planted_fault.h"

namespace attnbench {

/// Owns the faulty backends of the jobs that it changed, so it must outlive their run.
class PlantedFaults {
 public:
  /// `options` are texts KIND=REGEX, KIND being hang, crash or overrun; the last that matches a job
  /// counts. Errors: kUsage for anything else, and for an expression that matches no job.
  PlantedFaults(const std::vector<std::string>& options, std::vector<Job>& jobs);

 private:
  std::vector<std::unique_ptr<FaultyBackend>> backends_;
};

}  // namespace attnbench
