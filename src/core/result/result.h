// What one (case, backend) pair gave: the record behind every output format (contract.md section
// 4).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"

namespace attnbench {

enum class Status {
  kPassed,
  kIncorrect,
  kImplausible,
  kUnverified,
  kUnsupported,
  kError,
  kSkipped
};
std::span<const EnumRow<Status>> enum_rows(Status);  // named "passed", ...

/// Metrics without a member of their own, by the name of their row in metric_table.cpp.
using NamedNumbers = std::map<std::string, double>;

/// A row of a head: what a verdict on attention is passed on (docs/verdicts.md).
struct RowPlace {
  std::int64_t request = -1;
  std::int64_t token = -1;     // row of the output
  std::int64_t position = -1;  // of the token in its request, keys before it included
  std::int64_t head = -1;

  bool operator==(const RowPlace&) const = default;
};

/// Comparison of an output (or LSE) with the reference. Where a number does not exist it is NaN
/// here and null in JSON.
struct ErrorStats {
  double max_abs = 0;
  double mean_abs = 0;
  double rms_rel = 0;  // ||a - r|| / ||r||
  double nmse = 0;     // rms_rel^2
  double cosine = 1;
  double err_ratio = 0;    // max_abs / max_abs of the storage-precision emulation; NaN = null
  double matched_pct = 0;  // elements within atol + rtol*|r|
  std::vector<std::int64_t> worst_index;  // [token, head, element] (LSE: [head, token])
  double worst_actual = 0;
  double worst_expected = 0;
  std::int64_t nan_count = 0;  // in the output
  std::int64_t inf_count = 0;
  std::int64_t checked_rows = 0;
  std::int64_t total_rows = 0;
  std::int64_t screened_rows = 0;  // compared by screening; checked_rows are among them
  /// Of the row that is furthest beyond its limit, or nearest to it: its error and the limit, both
  /// in the size of the row. NaN where rows are not judged one by one.
  double row_error = std::numeric_limits<double>::quiet_NaN();
  double row_limit = std::numeric_limits<double>::quiet_NaN();
  RowPlace worst_row;
  std::int64_t rows_outside = 0;      // rows of heads beyond their limits
  std::int64_t requests_outside = 0;  // requests with such a row
  std::string limit;  // e.g. "|a-r| <= 0.01 + 0.01*|r|, cosine >= 1-1e-05, err_ratio <= 2"
  std::string rule;   // which rule decided, e.g. "semantics 14.2 bfloat16"
  NamedNumbers by_name = {};
};

/// What one rank of a context-parallel group computed before the exchange, against the float64
/// attention over its own keys.
struct RankErrors {
  int rank = 0;
  ErrorStats error;
  ErrorStats lse_error;
};

/// One request of the batch run on its own, against its rows in the batch.
struct BatchInvariance {
  std::int64_t request = 0;
  bool equal = false;  // the same bytes
  double max_abs = 0;
};

/// A timed sample whose output was compared with the reference.
struct SampleCheck {
  std::int64_t sample = 0;  // index in samples_us
  double row_error = 0;     // as in ErrorStats
  double row_limit = 0;
  std::int64_t screened_rows = 0;  // on a device; 0 = none
};

struct StepTiming {
  std::string name;
  double median_us = 0;
  double bytes = 0;
  double flops = 0;
};

/// Clocks of the device during the samples.
struct DeviceClocks {
  int sm_mhz_min = 0;
  int sm_mhz_median = 0;
  int sm_mhz_max = 0;
  std::vector<std::string> throttling;  // every reason seen, e.g. "sw_power_cap"
};

struct Timing {
  double median_us = 0;
  double min_us = 0;
  double q1_us = 0;
  double q3_us = 0;
  double mean_us = 0;
  double stdev_us = 0;
  double noise = 0;  // relative: stdev of the samples / mean, see measure.h
  std::vector<double> samples_us;
  /// How many of samples_us were taken in each round, in order, where something else ran between
  /// the rounds; else empty.
  std::vector<std::int64_t> rounds;
  /// The backends that took turns with this one, which is among them, in the order of the first
  /// round; empty where it was timed in one go.
  std::vector<std::string> peers;
  std::string l2;  // "cold" or "clean" only where proven, else "warm"
  /// Whether caches held nothing of the case before a sample.
  bool began_cold() const { return l2 == "cold" || l2 == "clean"; }
  /// Bytes that were overwritten before every sample, so that nothing was left in the caches; 0 =
  /// nothing was.
  std::uint64_t flushed_bytes = 0;
  std::string mode;  // "stream" | "graph"
  double launch_overhead_us = 0;
  std::vector<StepTiming> steps;
  double total_us = 0;  // the whole layer: all steps
  std::optional<DeviceClocks> clocks;
  /// Of every sample on the CPU, in microseconds: how long the thread that waited longest was ready
  /// to run and got no core. Empty where that is not known, or not the doing of other programs.
  std::vector<double> waits_us;
  /// Sum of waits_us per time that the samples took, steps outside of the median included; NaN
  /// without waits_us.
  double cpu_wait = std::numeric_limits<double>::quiet_NaN();
  /// "cool" or "sustained": what the device did before every sample; empty on the CPU.
  std::string pace;
  /// SM clock of the device while each sample ran, in MHz; empty where it is not known.
  std::vector<double> samples_sm_mhz;
  /// Median over the samples of time times clock; NaN without clocks.
  double cycles = std::numeric_limits<double>::quiet_NaN();
  std::vector<SampleCheck> checked_samples;
  NamedNumbers by_name = {};
};

/// Median of the samples of every round; empty without rounds.
std::vector<double> round_medians_us(const Timing& timing);
/// How far the rounds were apart: (largest - least of their medians) / median of all samples; NaN
/// for fewer than two rounds.
double round_spread(const Timing& timing);

struct Throughput {
  double tflops = 0;
  double gbps = 0;     // 1e9 bytes/s over unavoidable traffic
  double kv_gbps = 0;  // live K/V bytes of every request / time
  double tokens_per_s = 0;
  double flops = 0;
  double bytes = 0;
  double roofline_pct = 0;  // NaN = null: no measured ceiling
  std::string bound;        // "memory" | "compute"
  /// Share of the matrix units' peak at the clock that was observed; NaN without clocks.
  double peak_pct = std::numeric_limits<double>::quiet_NaN();
  /// What the device can do at best, measured: roofline_pct is of these. NaN = not measured.
  double ceiling_tflops = std::numeric_limits<double>::quiet_NaN();
  double ceiling_gbps = std::numeric_limits<double>::quiet_NaN();
  NamedNumbers by_name = {};
};

/// Relative error over values with a mean of half their deviation.
struct BiasedError {
  std::int64_t keys = 0;
  double rms_rel = 0;  // ||a - r|| / ||r||
};

/// What arithmetic a kernel does, told from its outputs.
struct Fingerprint {
  /// A term is lost beside a sum more than 2^sum_bits times as large; nothing = not found out.
  std::optional<int> sum_bits;
  bool sum_bits_at_least = false;  // more than the types of the case can show
  std::string probability;         // element type that P is rounded to; empty = not found out
  std::string output_rounding;     // "nearest", "toward zero", "neither"; empty = not found out
  std::vector<BiasedError> biased;
};

struct KernelInfo {
  std::string name;
  int registers = 0;
  int spill_bytes = 0;
  int shared_bytes = 0;
  std::string cubin_hash;
};

/// The library of a user's backend: which build was judged.
struct PluginInfo {
  std::string library;  // path as given
  std::string version;  // in the plugin's words
  std::string sha256;   // of the file
};

struct Result {
  std::string id;  // "<scenario>/<case>/<backend>"
  std::string scenario;
  std::string case_name;
  std::string backend;
  std::string device;  // "cpu", "cuda:0"
  Status status = Status::kError;
  std::vector<std::string> reasons;  // unsupported: those of §13 without the "unsupported: " prefix
  std::string problem_json;          // problem_to_json of the resolved problem
  /// SHA-256 of the files that the problem names, by its key, e.g. "kv_cache.scale_file".
  std::map<std::string, std::string> file_hashes;
  std::optional<ErrorStats> error;
  std::optional<ErrorStats> lse_error;
  std::optional<ErrorStats> quantization_error;
  /// The same of the second draw of inputs, with needles and biased values (docs/verdicts.md).
  std::optional<ErrorStats> probe_error;
  std::optional<ErrorStats> probe_lse_error;
  /// Mistakes that the verdict on this case would not see; nothing where that was not looked for.
  std::optional<std::vector<std::string>> blind_to;
  /// What the checked rows and samples were drawn with, after the backend had run.
  std::optional<std::uint64_t> sample_seed;
  std::optional<Fingerprint> fingerprint;           // where `run --fingerprint` took it
  std::vector<RankErrors> rank_errors;              // by rank under DCP, else empty
  std::optional<BatchInvariance> batch_invariance;  // of batches with more than one request
  std::optional<Timing> timing;                     // only when passed or unverified
  std::optional<Throughput> throughput;             // only when passed or unverified
  /// Wall seconds that the run of the case took, by phase: inputs, reference, run, timing. Empty
  /// where it never ran.
  std::map<std::string, double> run_seconds;
  std::vector<KernelInfo> kernels;
  /// Of a decoder whose requests share keys: whether cascade.mode auto attends the prefix apart on
  /// this device (the heuristic of §6.1), whatever the mode of the case is.
  std::optional<bool> cascade_heuristic;
  std::string forced_kernel;         // of the attention; empty = the first that fits was taken
  std::optional<PluginInfo> plugin;  // of a user's backend
  std::string repro;
};

struct CpuInfo {
  std::string model;
  int cores = 0;
  std::string features;  // the vector extensions in use, e.g. "avx2 fma avx512f"
};

/// The GPU that cases ran on.
struct DeviceDescription {
  std::string name;
  int sm = 0;       // 10 * major + minor
  int num_sms = 0;  // multiprocessors
  std::uint64_t memory_bytes = 0;
  std::uint64_t l2_bytes = 0;
  std::string driver;   // newest CUDA version that the driver serves
  std::string runtime;  // CUDA runtime linked in
};

struct Environment {
  std::string hostname;
  CpuInfo cpu;
  std::optional<DeviceDescription> device;  // none on the CPU
  std::string compiler;
  std::string fingerprint;  // hash of what makes timings comparable: cpu, device, compiler
};

/// How far runs of the same program on the same machine were apart (A/A): relative gaps between
/// medians, 0.02 = 2 %.
struct NoiseFloor {
  int runs = 0;                         // that were compared
  double all_cases = 0;                 // what every case may differ by
  std::map<std::string, double> cases;  // the largest gap seen, by result id
};

/// Everything in a result file beside the results.
struct RunInfo {
  std::string tool_version;
  std::string git;                   // commit, "-dirty" when modified; "unknown"
  std::string created;               // RFC 3339, UTC
  std::vector<std::string> command;  // argv
  Environment environment;
  std::optional<NoiseFloor> noise_floor;  // of a baseline that was recorded with a self-check
};

/// Counts by status, for summaries and exit codes.
struct StatusCounts {
  int passed = 0, incorrect = 0, implausible = 0, unverified = 0, unsupported = 0, error = 0,
      skipped = 0;
  int total() const {
    return passed + incorrect + implausible + unverified + unsupported + error + skipped;
  }
};
StatusCounts count_statuses(const std::vector<Result>& results);

}  // namespace attnbench
