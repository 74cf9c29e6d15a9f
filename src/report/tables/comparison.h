// Two result files side by side, for looking and not for judging: `attnbench diff`.
//
// Every case of either file has a line, in the order of the gate's verdicts, worst first: what it
// took before and after, by how much that changed, the largest error where it is another one, and
// the verdict. A case without a time shows its status in the place of the time. The last lines are
// the geometric mean of after / before for each backend, over the cases that both files timed.
//
//   case                     before      after    change  max_abs             verdict
//   demo/q64/FLASH_ATTN    216.4 us   260.1 us   +20.2 %  7.7e-03             SLOWER
//   demo/q64/TRITON_ATTN   220.0 us   incorrect           1.0e-03 -> 2.0e-01  BROKEN
//
//   mean change of time    FLASH_ATTN +20.2 % (1 case)
//   1 BROKEN, 1 SLOWER
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "core/result/verdict.h"
#include "report/tables/results.h"

namespace attnbench {

/// The table above. Ids are shortened in the middle where the width demands it; the rule of each
/// verdict is printed below it with options.show_reasons.
void write_comparison_table(std::ostream& out, const std::vector<Result>& before,
                            const std::vector<Result>& after, const GateReport& report,
                            const TableOptions& options);

/// after / before of the medians in the geometric mean, with the number of cases, by backend.
struct MeanChange {
  double ratio = 1;
  int cases = 0;
};
std::map<std::string, MeanChange> mean_changes(const std::vector<Result>& before,
                                               const std::vector<Result>& after);

}  // namespace attnbench
