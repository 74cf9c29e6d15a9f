// The formats that results and verdicts are written in, one row each: `run`, `gate` and `gate
// --agreement` have an option --NAME for every row that they can write. A new format is a function
// that writes it and a row in formats.cpp.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/result/agreement.h"
#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {

/// What a gate has to say of a run.
struct GatedRun {
  const RunInfo& run;
  const std::vector<Result>& results;
  const GateReport& report;
  const std::vector<std::string>& links;  // to artefacts: URLs or paths
};

struct OutputFormat {
  const char* name;  // the option without its dashes
  const char* help;  // of the option of `run`
  void (*write)(std::ostream&, const RunInfo&, const std::vector<Result>&);

  /// What `gate` writes, and the help of its option there; null = `gate` has no such option.
  const char* verdict_help = nullptr;
  void (*write_verdicts)(std::ostream&, const GatedRun&) = nullptr;
  /// Null = `gate --agreement` refuses the option.
  void (*write_agreement)(std::ostream&, const AgreementReport&) = nullptr;

  /// This is the format that the program reads back. A run that writes such a file keeps a journal
  /// beside it, may write it over the one that it resumes, and says how to plot it. One row has it.
  bool is_result_file = false;
};

/// In the order of the options.
const std::vector<OutputFormat>& output_formats();

/// The row that is_result_file.
const OutputFormat& result_file_format();

}  // namespace attnbench
