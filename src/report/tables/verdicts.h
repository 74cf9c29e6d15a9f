// What a gate says in a terminal: verdicts against a baseline, or how far two devices agree.
//
// Both come sorted, worst first, from src/gate, and end with one line that says whether the gate
// passes; the exit code follows the report and not what is shown here. What is fine is left out
// unless the user wants all of it, so that a failure of one case among hundreds stays visible.
//
//   SLOWER         suite/4q1s1k/FLASH_ATTN          100.0 us -> 110.0 us    +10.0%
//       the rule that decided, with its numbers
//
//   1 SLOWER, 23 SAME
//   gate failed: 1 of 24 cases
//   reproduce: attnbench run suite.yaml --filter ...
//
// Agreement has a line a case with both sides of each number, the factor between them, and which
// number that factor is of:
//
//   result                     status  err_ratio cpu  err_ratio cuda:0  NMSE ...  factor  of
//   demo/q64/FLASH_ATTN        passed           0.82              0.85       ...    1.04  err_ratio
#pragma once

#include <ostream>

#include "core/result/agreement.h"
#include "core/result/verdict.h"
#include "report/row_names.h"
#include "report/tables/results.h"

namespace attnbench {

/// `names` of the results on both sides. Worst first, with the rule under each; cases that are the
/// same only with `show_reasons`. Then the counts, whether the gate passes, notices, and what to do
/// next.
void write_verdict_table(std::ostream& out, const GateReport& report, const RowNames& names,
                         const TableOptions& options);

/// Worst first; with options.show_reasons every case, else those that fail and the worst of the
/// others. Then why each failure is one, what only one file has, counts and the outcome.
void write_agreement_table(std::ostream& out, const AgreementReport& report, const RowNames& names,
                           const TableOptions& options);
/// The same as a GitHub-flavoured table of all cases, for a file: --markdown of `gate --agreement`.
void write_agreement_markdown(std::ostream& out, const AgreementReport& report);

}  // namespace attnbench
