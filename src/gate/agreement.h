// Two result files of the same cases on different devices: the same statuses, errors of one order.
#pragma once

#include "core/result/agreement.h"
#include "core/result/result_file.h"

namespace attnbench {

struct AgreementOptions {
  double allowed_factor = 4;
  bool lenient = false;             // a case of one file alone does not fail
  bool ignore_environment = false;  // cases whose problems differ are compared anyway
};

/// Compares every case that neither file skipped. The factor of a case is the largest of those of
/// the err_ratios, of which less than a tenth counts as a tenth (a tenth of what the storage format
/// costs anybody), and of the root NMSEs, of which less than 1e-8 (LSE: 1e-6) counts as that; of
/// output and LSE.
/// Errors: kUsage when a case is another problem in the two files.
AgreementReport compare_agreement(const ResultFile& first, const ResultFile& second,
                                  const AgreementOptions& options);

}  // namespace attnbench
