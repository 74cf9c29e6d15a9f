// Everything that the program writes as JSON: results of a run, verdicts of a gate, the agreement
// of two devices.
//
// The result file is the program's own format: --resume, the gate and the report page read it back,
// by core/result/result_file.h, and so do scripts of users. A member never changes its name or its
// unit; a reader must bear members that it does not know, so that new ones can be added. All three
// documents are strict JSON: a number that does not exist (NaN, infinity) is null, and text that is
// not UTF-8 is replaced rather than refused.
//
// Numbers are microseconds, bytes and plain ratios; the unit is the end of a name (`before_us`).
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/result/agreement.h"
#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {

/// The result file (contract section 4). Where a number of a result is null, its `notes` say why.
void write_json(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// Everything of write_json but the results, as one line: the first line of a journal.
std::string result_file_head(const RunInfo& run);

/// Every verdict with its rule, in the order of the report, and the notices of the gate:
/// {"schema_version", "tool", "created", "passed", "counts", "notices", "verdicts": [{"id",
/// "verdict", "fails", "before_us", "after_us", "ratio", "rule", "known"}]}. `known` is the reason
/// of a known failure, else null.
void write_verdict_json(std::ostream& out, const RunInfo& run, const GateReport& report);

/// {"schema_version", "devices": [2], "allowed_factor", "passed", "lone": [ids], "cases": [{"id",
/// "status": [2], "err_ratio": [2], "nmse": [2], "lse_err_ratio": [2], "lse_nmse": [2], "factor",
/// "figure", "disagreement"}]}: pairs are in the order of `devices`, `lone` are cases of one file
/// only.
void write_agreement_json(std::ostream& out, const AgreementReport& report);

}  // namespace attnbench
