// A calibration as a table, as JSON and as warnings.
//
// All three answer the same question: are the chosen scales good enough, and would another method
// have been better? So layers come worst first, by the attention error of the reported scales, with
// those whose error is not known at the end. An error by itself says little, since formats differ:
// warnings compare with the best method of the same layer.
//
// The JSON has a schema_version. Numbers that do not exist
// (no attention, no usable scale) are null there and a dash in the table.
//
// Nothing here computes: figures are those of the CalibrationReport, so that table, JSON and
// warnings cannot disagree.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "calibrate/calibrate.h"

namespace attnbench {

/// For people: columns are aligned and may change from version to version.
/// `chosen` names the scales reported: "amax", or the name of a scale file. Layers worst first;
/// those without an attention error at the end.
void write_scale_table(std::ostream& out, const CalibrationReport& report,
                       const std::string& chosen);

/// Numbers of the layers whose attention error is more than twice the median's of at least three
/// layers, worst first: those that vLLM's --kv-cache-dtype-skip-layers would best leave in 16 bits.
/// Only for scales of a cache, and layers whose names have a number.
std::vector<std::int64_t> costly_layers(const CalibrationReport& report);

/// Warnings, for stderr and the JSON. One sentence where amax was taken with its sign, and one for
/// the chosen scales and each method that lose more than twice the best error
/// somewhere.
std::vector<std::string> scale_warnings(const CalibrationReport& report, const std::string& chosen);

/// Strict JSON (no NaN, no infinities), layers worst first; ends with a newline. Names that are not
/// UTF-8 are shown with replacement characters.
std::string scale_report_json(const CalibrationReport& report, const std::string& chosen);

}  // namespace attnbench
