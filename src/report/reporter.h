// Results -> text: table, JSON, CSV, Markdown, JUnit. Reporters know units, not how a number came.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "report/formats.h"

namespace attnbench {

struct TableOptions {
  bool color = false;
  int width = 80;
  bool show_reasons = true;  // all reasons of unsupported results, else the first
};

/// The terminal table: one line a result, aligned and at most `width` columns wide, with the
/// reasons under results that are not passed; then the tables of cascade_table.h and peer_table.h,
/// the counts, worst first, and what to do next. Columns that do not fit are left out: noise first,
/// then err_ratio, then the rate.
void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options);

/// Contract section 4, strict JSON: NaN and infinity become null, with the reason in a `notes`
/// array beside them. Text that is not UTF-8 is replaced.
void write_json(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);
/// Everything of write_json but the results, as one line.
std::string result_file_head(const RunInfo& run);
/// A GitHub-flavoured Markdown table with a summary line.
void write_markdown(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);
/// JUnit XML: a testsuite a scenario; incorrect = <failure>, error = <error>, unsupported and
/// skipped = <skipped>.
void write_junit(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// google-benchmark's JSON: one iteration run a timed result, the median as real_time; incorrect
/// and error results have error_occurred.
void write_google_benchmark(std::ostream& out, const RunInfo& run,
                            const std::vector<Result>& results);
/// github-action-benchmark's custom JSON (customSmallerIsBetter): the median of every timed result.
void write_github_benchmark(std::ostream& out, const RunInfo& run,
                            const std::vector<Result>& results);
/// The columns and keys of vLLM's benchmarks/attention_benchmarks (times in seconds); the case name
/// stands for its batch spec. The CSV has timed results only, the JSON failed ones too.
void write_vllm_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);
void write_vllm_json(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// Writes a format to `path` ("-" = stdout) through a temporary file and rename, so that a reader
/// never sees half a file. A path that is not a regular file (a pipe, /dev/null) is written in
/// place. Errors: E-IO naming the path.
void write_output(const OutputFormat& format, const std::string& path, const RunInfo& run,
                  const std::vector<Result>& results);

/// The same for any text.
void write_text(const std::string& path, const std::string& text);

/// Fails with E-IO when `path` could not be written later: checked before anything runs. Leaves
/// nothing behind. A file or folder without any write permission is refused to the superuser too.
void check_writable(const std::string& path);

}  // namespace attnbench
