// A calibration as a table, as JSON and as warnings.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "calibrate/calibrate.h"

namespace attnbench {

/// `chosen` names the scales reported: "amax", or the name of a scale file. Layers worst first;
/// those without an attention error at the end.
void write_scale_table(std::ostream& out, const CalibrationReport& report,
                       const std::string& chosen);

/// One sentence for the chosen scales and each method that lose more than twice the best error
/// somewhere.
std::vector<std::string> scale_warnings(const CalibrationReport& report, const std::string& chosen);

/// Strict JSON, layers worst first.
std::string scale_report_json(const CalibrationReport& report, const std::string& chosen);

}  // namespace attnbench
