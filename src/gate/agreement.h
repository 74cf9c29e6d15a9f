// Two result files of the same cases on different devices, such as CPU and GPU: do they agree?
//
// Their bytes differ, since operations add in another order, so what is compared is the status of
// each case and the order of magnitude of its errors against the same reference. A kernel that is
// right but four times less accurate than its twin shows here long before it leaves its tolerance.
// Times are not compared. Cases that one device skipped or that only one file has are listed apart:
// they say nothing for or against agreement, and by default they fail.
#pragma once

#include "core/result/agreement.h"
#include "core/result/result_file.h"

namespace attnbench {

/// By default every difference of the two files fails; the options take single ones out.
struct AgreementOptions {
  /// Between the errors of a case on the two devices. A larger one fails it, in whichever
  /// direction.
  double allowed_factor = 4;
  bool lenient = false;             // a case that only one file has does not fail
  bool ignore_environment = false;  // cases whose problems differ are compared anyway
};

/// Compares every case that neither file skipped. The factor of a case is the largest of those of
/// the err_ratios, of which less than a tenth counts as a tenth (a tenth of what the storage format
/// costs every kernel), and of the root NMSEs, of which less than 1e-8 (LSE: 1e-6) counts as that;
/// of output and LSE. A case of which one side has no error while the other has one is infinitely
/// far apart. The report is sorted, worst first. Errors: kFormat when a file contradicts
/// itself (belief.h), kUsage when a case is another problem in the two files.
AgreementReport compare_agreement(const ResultFile& first, const ResultFile& second,
                                  const AgreementOptions& options);

}  // namespace attnbench
