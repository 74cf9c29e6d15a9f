// Whether two devices give the same answer: the record behind the table of `gate --agreement`.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// One side of a case.
struct AgreementSide {
  Status status = Status::kSkipped;
  /// NaN where there is none.
  double err_ratio = std::numeric_limits<double>::quiet_NaN();
  double nmse = std::numeric_limits<double>::quiet_NaN();
  double lse_err_ratio = std::numeric_limits<double>::quiet_NaN();
  double lse_nmse = std::numeric_limits<double>::quiet_NaN();
};

struct Agreement {
  std::string id;
  AgreementSide first, second;
  /// How many times larger one side's error is than the other's; 1 where both are as good as
  /// nothing, or where neither is a number; infinity where only one is.
  double factor = 1;
  std::string figure;  // that the factor is of: "NMSE", "LSE err_ratio", ...; "" where it is 1
  std::string disagreement;  // why the case fails; empty = it does not
};

struct AgreementReport {
  std::string first_device, second_device;  // "cpu", "cuda:0"
  double allowed_factor = 0;
  std::vector<Agreement> cases;   // in both files, worst first
  std::vector<std::string> lone;  // ids in one of the files only
  bool lone_cases_fail = true;

  int failures() const {
    int count = lone_cases_fail ? static_cast<int>(lone.size()) : 0;
    for (const Agreement& agreement : cases) count += agreement.disagreement.empty() ? 0 : 1;
    return count;
  }
};

}  // namespace attnbench
