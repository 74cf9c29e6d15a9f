#include "report/formats.h"

#include <algorithm>

#include "report/formats/csv.h"
#include "report/formats/exchange.h"
#include "report/formats/foreign.h"
#include "report/formats/json.h"
#include "report/formats/junit.h"
#include "report/formats/markdown.h"
#include "report/tables/verdicts.h"

namespace attnbench {
namespace {

void verdict_json(std::ostream& out, const GatedRun& gated) {
  write_verdict_json(out, gated.run, gated.report);
}
void verdict_junit(std::ostream& out, const GatedRun& gated) {
  write_verdict_junit(out, gated.run, gated.report);
}
void verdict_summary(std::ostream& out, const GatedRun& gated) {
  SummaryOptions options;
  options.links = gated.links;
  write_summary(out, gated.run, gated.results, &gated.report, options);
}

}  // namespace

const std::vector<OutputFormat>& output_formats() {
  static const std::vector<OutputFormat> formats{
      {.name = "json",
       .help = "Write all results as JSON",
       .write = write_json,
       .verdict_help = "Write every verdict as JSON",
       .write_verdicts = verdict_json,
       .write_agreement = write_agreement_json,
       .is_result_file = true},
      {.name = "csv", .help = "Write CSV, one line per result", .write = write_csv},
      {.name = "markdown",
       .help = "Write a Markdown table",
       .write = write_markdown,
       .verdict_help = "Write a summary for a pull request",
       .write_verdicts = verdict_summary,
       .write_agreement = write_agreement_markdown},
      {.name = "junit",
       .help = "Write JUnit XML",
       .write = write_junit,
       .verdict_help = "Write JUnit XML",
       .write_verdicts = verdict_junit},
      {.name = "google-benchmark",
       .help = "Write google-benchmark JSON",
       .write = write_google_benchmark},
      {.name = "github-benchmark",
       .help = "Write JSON for github-action-benchmark (customSmallerIsBetter)",
       .write = write_github_benchmark},
      {.name = "vllm-csv",
       .help = "Write the CSV of vLLM's attention_benchmarks",
       .write = write_vllm_csv},
      {.name = "vllm-json",
       .help = "Write the JSON of vLLM's attention_benchmarks",
       .write = write_vllm_json},
      {.name = "bencher", .help = "Write Bencher Metric Format (JSON)", .write = write_bencher},
      {.name = "otava-csv",
       .help = "Write a one-row CSV for Apache Otava",
       .write = write_otava_csv},
      {.name = "nvbench-json", .help = "Write nvbench's JSON", .write = write_nvbench},
      {.name = "cudnn-csv",
       .help = "Write the CSV of cuDNN's SDPA benchmark",
       .write = write_cudnn_csv},
      {.name = "prometheus",
       .help = "Write gauges in Prometheus's text format",
       .write = write_prometheus},
  };
  return formats;
}

const OutputFormat& result_file_format() {
  const std::vector<OutputFormat>& formats = output_formats();
  return *std::find_if(formats.begin(), formats.end(),
                       [](const OutputFormat& format) { return format.is_result_file; });
}

}  // namespace attnbench
