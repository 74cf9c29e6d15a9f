// The answers of two devices side by side, as a table.
#pragma once

#include <ostream>

#include "core/result/agreement.h"
#include "report/reporter.h"

namespace attnbench {

/// Worst first; with options.show_reasons every case, else those that fail and the worst of the
/// others. Then counts and the outcome.
void write_agreement_table(std::ostream& out, const AgreementReport& report,
                           const TableOptions& options);
/// The same as a GitHub-flavoured table of all cases.
void write_agreement_markdown(std::ostream& out, const AgreementReport& report);
/// {"schema_version", "devices": [2], "allowed_factor", "passed", "lone": [ids], "cases": [{"id",
/// "status": [2], "err_ratio": [2], "nmse": [2], "factor", "disagreement"}]}; null for no number.
void write_agreement_json(std::ostream& out, const AgreementReport& report);

}  // namespace attnbench
