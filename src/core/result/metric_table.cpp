// The rows: each says where a number is kept, its unit, which direction is better, and how result
// file, CSV, page, gate and pooling treat it. Rows stand in the order in which the result file has
// them. A row that files of older versions do not have must not be Presence::kAlways, or they could
// no longer be read.
#include "core/result/metric_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {
namespace {

constexpr const char* kNoFinite = "no element is finite in both output and reference";
constexpr CsvColumns kNoColumn{.own = false};

const char* no_finite(const ErrorStats&) { return kNoFinite; }
const char* no_norm(const ErrorStats& error) {
  return std::isfinite(error.max_abs) ? "the reference is zero" : kNoFinite;
}
const char* no_angle(const ErrorStats& error) {
  return std::isfinite(error.max_abs) ? "one of the vectors is zero" : kNoFinite;
}
const char* no_ratio(const ErrorStats&) {
  return "the same maths in storage precision has no error, or was not computed";
}
bool has_worst(const ErrorStats& error) { return !error.worst_index.empty(); }

/// Of quantization_error only: what static scales clip.
MetricRow<ErrorStats> saturated(const char* name, const char* text) {
  return {.name = name,
          .place = ByName{},
          .unit = "1",
          .better = Better::kLess,
          .text = text,
          .presence = Presence::kIfSet,
          .csv = {.own = false, .quantization = true}};
}

std::vector<MetricRow<ErrorStats>> error_rows() {
  using E = ErrorStats;
  return {
      {.name = "max_abs",
       .place = &E::max_abs,
       .unit = "1",
       .better = Better::kLess,
       .text = "largest |output - reference|",
       .why_null = no_finite,
       .csv = {.lse = true, .quantization = true},
       .plot = Plot{"max_abs", "largest error", "error", 1, 10}},
      {.name = "mean_abs",
       .place = &E::mean_abs,
       .unit = "1",
       .better = Better::kLess,
       .text = "mean |output - reference|",
       .why_null = no_finite},
      {.name = "rms_rel",
       .place = &E::rms_rel,
       .unit = "1",
       .better = Better::kLess,
       .text = "||output - reference|| / ||reference||",
       .why_null = no_norm,
       .csv = {.quantization = true},
       .plot = Plot{"rms_rel", "relative RMS error", "error", 1, 11}},
      // The floors: below that of the output changes are smaller than the NMSE of any format's
      // rounding; the LSE is a float32 sum of exponentials that are good to some 2^-22.
      {.name = "nmse",
       .place = &E::nmse,
       .unit = "1",
       .better = Better::kLess,
       .text = "rms_rel squared",
       .why_null = no_norm,
       .gate = GateRule{"NMSE", 1e-16, 1e-12, 2}},
      // Why whole: what tells kernels apart is in the sixth digit and beyond.
      {.name = "cosine",
       .place = &E::cosine,
       .unit = "1",
       .better = Better::kMore,
       .text = "cosine of output and reference",
       .why_null = no_angle,
       .on_page = OnPage::kWhole},
      // The floor: a hundredth of what storing in the output's format costs.
      {.name = "err_ratio",
       .place = &E::err_ratio,
       .unit = "1",
       .better = Better::kLess,
       .text = "max_abs / the same of the maths emulated in storage precision",
       .why_null = no_ratio,
       .plot = Plot{"err_ratio", "err_ratio", "ratio", 1, 9},
       .gate = GateRule{"err_ratio", 0.01, 0.01, 1}},
      {.name = "matched_pct",
       .place = &E::matched_pct,
       .unit = "%",
       .better = Better::kMore,
       .text = "elements within their limits"},
      {.name = "worst_index",
       .place = &E::worst_index,
       .presence = Presence::kOrNull,
       .csv = kNoColumn},
      {.name = "nan_count",
       .place = &E::nan_count,
       .unit = "elements",
       .better = Better::kLess,
       .text = "NaN in the output",
       .on_page = OnPage::kNo},
      {.name = "inf_count",
       .place = &E::inf_count,
       .unit = "elements",
       .better = Better::kLess,
       .text = "infinities in the output",
       .on_page = OnPage::kNo},
      {.name = "checked_rows",
       .place = &E::checked_rows,
       .unit = "rows",
       .text = "rows compared with the reference"},
      {.name = "total_rows", .place = &E::total_rows, .unit = "rows", .text = "rows of the output"},
      {.name = "screened_rows",
       .place = &E::screened_rows,
       .unit = "rows",
       .text = "rows compared by screening, those checked among them",
       .presence = Presence::kIfSet,
       .csv = kNoColumn},
      {.name = "row_error",
       .place = &E::row_error,
       .unit = "1",
       .better = Better::kLess,
       .text = "error of the row nearest to its limit, or furthest beyond, in the row's size",
       .presence = Presence::kIfSet,
       .csv = kNoColumn},
      {.name = "row_limit",
       .place = &E::row_limit,
       .unit = "1",
       .text = "limit of that row",
       .presence = Presence::kIfSet,
       .csv = kNoColumn},
      {.name = "rows_outside",
       .place = &E::rows_outside,
       .unit = "rows",
       .better = Better::kLess,
       .text = "rows of heads beyond their limits",
       .presence = Presence::kIfSet,
       .csv = kNoColumn},
      {.name = "requests_outside",
       .place = &E::requests_outside,
       .unit = "requests",
       .better = Better::kLess,
       .text = "requests with such a row",
       .presence = Presence::kIfSet,
       .csv = kNoColumn},
      {.name = "limit", .place = &E::limit, .csv = kNoColumn},
      {.name = "rule", .place = &E::rule, .csv = kNoColumn},
      {.name = "worst_actual",
       .place = &E::worst_actual,
       .applies = has_worst,
       .csv = kNoColumn,
       .on_page = OnPage::kNo},
      {.name = "worst_expected",
       .place = &E::worst_expected,
       .applies = has_worst,
       .csv = kNoColumn,
       .on_page = OnPage::kNo},
      saturated("saturated_query", "share of the query that its scale clips"),
      saturated("saturated_key", "share of the keys (MLA: latent entries) that their scale clips"),
      saturated("saturated_value", "share of the values that their scale clips"),
      saturated("saturated_output", "share of the output that its scale clips"),
  };
}

const char* one_sample(const Timing&) { return "needs more than one sample"; }
const char* one_round(const Timing&) { return "needs more than one round"; }
bool has_rounds(const Timing& timing) { return !timing.rounds.empty(); }

const char* rounds_mistake(const Timing& timing) {
  if (timing.rounds.empty()) return nullptr;
  auto left = static_cast<std::int64_t>(timing.samples_us.size());
  for (const std::int64_t samples : timing.rounds) {
    if (samples < 1 || samples > left) left = 0;
    left -= samples;
  }
  return left == 0 ? nullptr : "the rounds are not those of samples_us";
}

MetricRow<Timing> sample_time(const char* name, double Timing::*member, const char* text,
                              const std::optional<Plot>& plot = std::nullopt) {
  return {.name = name,
          .place = member,
          .unit = "us",
          .better = Better::kLess,
          .text = text,
          .plot = plot,
          .pooling = Pooling::kSamples};
}

/// What the result file says of the samples beside the metrics; the page's data have its own form.
template <typename Place>
MetricRow<Timing> sample_detail(const char* name, Place place) {
  return {.name = name,
          .place = place,
          .presence = Presence::kIfSet,
          .csv = kNoColumn,
          .on_page = OnPage::kNo};
}

std::vector<MetricRow<Timing>> timing_rows() {
  using T = Timing;
  return {
      sample_time("median_us", &T::median_us, "median time of attention with its splits and merges",
                  Plot{"time", "time", "time", 1, 1}),
      sample_time("min_us", &T::min_us, "least time"),
      sample_time("q1_us", &T::q1_us, "first quartile of the time"),
      sample_time("q3_us", &T::q3_us, "third quartile of the time"),
      sample_time("mean_us", &T::mean_us, "mean time"),
      {.name = "stdev_us",
       .place = &T::stdev_us,
       .unit = "us",
       .better = Better::kLess,
       .text = "standard deviation of the time",
       .why_null = one_sample,
       .on_page = OnPage::kNo,
       .pooling = Pooling::kSamples},
      {.name = "noise",
       .place = &T::noise,
       .unit = "1",
       .better = Better::kLess,
       .text = "relative half-width of the median's interval",
       .why_null = one_sample,
       .plot = Plot{"noise", "noise", "percent", 100, 8},
       .pooling = Pooling::kSamples},
      {.name = "samples_us",
       .place = &T::samples_us,
       .csv = {.name = "samples"},
       .on_page = OnPage::kNo},
      {.name = "rounds",
       .place = &T::rounds,
       .presence = Presence::kIfSet,
       .mistake = rounds_mistake,
       .csv = kNoColumn,
       .on_page = OnPage::kNo},
      {.name = "round_medians_us",
       .place = &round_medians_us,
       .applies = has_rounds,
       .csv = kNoColumn,
       .on_page = OnPage::kNo},
      {.name = "round_spread",
       .place = &round_spread,
       .unit = "1",
       .better = Better::kLess,
       .text = "how far the medians of rounds are apart / median_us",
       .applies = has_rounds,
       .why_null = one_round,
       .csv = kNoColumn,
       .on_page = OnPage::kNo},
      sample_detail("peers", &T::peers),
      {.name = "l2", .place = &T::l2},
      {.name = "mode", .place = &T::mode},
      {.name = "launch_overhead_us",
       .place = &T::launch_overhead_us,
       .unit = "us",
       .better = Better::kLess,
       .text = "what starting the work costs the host",
       .pooling = Pooling::kMean},
      {.name = "steps", .place = &T::steps, .csv = kNoColumn, .on_page = OnPage::kNo},
      {.name = "total_us",
       .place = &T::total_us,
       .unit = "us",
       .better = Better::kLess,
       .text = "median time of all steps of the layer",
       .plot = Plot{"total", "time of the whole layer", "time", 1, 2},
       .pooling = Pooling::kMean},
      {.name = "predicted_us",
       .place = ByName{},
       .unit = "us",
       .better = Better::kLess,
       .text = "of simulated ranks: predicted time of the slowest real one, exchanges over NVLink",
       .csv = kNoColumn,
       .pooling = Pooling::kMean},
      sample_detail("flushed_bytes", &T::flushed_bytes),
      sample_detail("clocks", &T::clocks),
      sample_detail("pace", &T::pace),
      sample_detail("samples_sm_mhz", &T::samples_sm_mhz),
      {.name = "cycles",
       .place = &T::cycles,
       .unit = "cycles",
       .better = Better::kLess,
       .text = "median of time times SM clock",
       .presence = Presence::kIfSet,
       .csv = kNoColumn,
       .pooling = Pooling::kSamples},
      sample_detail("waits_us", &T::waits_us),
      {.name = "cpu_wait",
       .place = &T::cpu_wait,
       .unit = "1",
       .better = Better::kLess,
       .text = "waiting for cores that other programs had / time of the samples",
       .presence = Presence::kIfSet,
       .csv = kNoColumn,
       .on_page = OnPage::kNo,
       .pooling = Pooling::kLargest},
  };
}

const char* no_time(const Throughput&) { return "the time is too short to be measured"; }
const char* no_ceiling(const Throughput&) { return "no ceiling of this device was measured"; }

MetricRow<Throughput> rate(const char* name, double Throughput::*member, const char* unit,
                           const char* text, const Plot& plot) {
  return {.name = name,
          .place = member,
          .unit = unit,
          .better = Better::kMore,
          .text = text,
          .why_null = no_time,
          .plot = plot,
          .pooling = Pooling::kPerTime};
}

/// Why left out and not null: files of older versions have none either.
MetricRow<Throughput> ceiling(const char* name, double Throughput::*member, const char* unit,
                              const char* text) {
  return {.name = name,
          .place = member,
          .unit = unit,
          .text = text,
          .presence = Presence::kIfSet,
          .csv = kNoColumn};
}

std::vector<MetricRow<Throughput>> throughput_rows() {
  using T = Throughput;
  return {
      rate("tflops", &T::tflops, "TFLOP/s", "2 * H * (D + Dv) * visible pairs / median_us",
           {"flops", "FLOP/s", "flops", 1e12, 3}),
      rate("gbps", &T::gbps, "GB/s", "unavoidable traffic / median_us",
           {"bytes", "bytes/s", "bytes", 1e9, 4}),
      rate("kv_gbps", &T::kv_gbps, "GB/s", "live K/V bytes of every request / median_us",
           {"kv_bytes", "K/V bytes/s", "bytes", 1e9, 5}),
      rate("tokens_per_s", &T::tokens_per_s, "tokens/s", "new tokens / median_us",
           {"tokens", "new tokens/s", "rate", 1, 6}),
      {.name = "flops",
       .place = &T::flops,
       .unit = "FLOP",
       .text = "counted exactly from visible pairs"},
      {.name = "bytes",
       .place = &T::bytes,
       .unit = "B",
       .text = "unavoidable traffic: unique live K/V, Q and O"},
      {.name = "roofline_pct",
       .place = &T::roofline_pct,
       .unit = "%",
       .better = Better::kMore,
       .text = "share of what the device's ceilings allow",
       .why_null = no_ceiling,
       .plot = Plot{"roofline", "share of the roofline", "percent", 1, 7},
       .pooling = Pooling::kPerTime},
      {.name = "physics_pct",
       .place = ByName{},
       .unit = "%",
       .text = "share of what the device can do at all; beyond belief the status is implausible",
       .csv = kNoColumn,
       .pooling = Pooling::kPerTime},
      {.name = "bound", .place = &T::bound, .presence = Presence::kOrNull},
      {.name = "peak_pct",
       .place = &T::peak_pct,
       .unit = "%",
       .better = Better::kMore,
       .text = "share of the matrix units' peak at the observed clock",
       .presence = Presence::kIfSet,
       .csv = kNoColumn},
      ceiling("ceiling_tflops", &T::ceiling_tflops, "TFLOP/s",
              "most that the device can compute, as measured"),
      ceiling("ceiling_gbps", &T::ceiling_gbps, "GB/s",
              "most that the device's memory can move, as measured"),
  };
}

template <typename Part>
void list_rows(const std::vector<MetricRow<Part>>& rows, std::vector<ListedMetric>& listed) {
  for (const MetricRow<Part>& row : rows) {
    if (row.text == nullptr) continue;
    listed.push_back({row.name, row.unit, row.text});
    if (row.csv.lse) {
      listed.push_back({fmt::format("lse_{}", row.name), row.unit,
                        fmt::format("{} of the log-sum-exp", row.name)});
    }
    if (row.csv.quantization) {
      listed.push_back({fmt::format("quantization_{}", row.name), row.unit,
                        fmt::format("{} against the reference without quantisation", row.name)});
    }
  }
}

template <typename Part>
void plot_rows(const char* part, const std::vector<MetricRow<Part>>& rows,
               std::vector<PlottedMetric>& plotted) {
  for (const MetricRow<Part>& row : rows) {
    if (row.plot) plotted.push_back({part, row.name, row.better, *row.plot});
  }
}

}  // namespace

const MetricTable& metric_table() {
  static const MetricTable table{error_rows(), timing_rows(), throughput_rows()};
  return table;
}

std::vector<ListedMetric> listed_metrics(const MetricTable& table) {
  std::vector<ListedMetric> listed;
  list_rows(table.error, listed);
  list_rows(table.timing, listed);
  list_rows(table.throughput, listed);
  std::sort(listed.begin(), listed.end(),
            [](const ListedMetric& a, const ListedMetric& b) { return a.name < b.name; });
  return listed;
}

std::vector<PlottedMetric> plotted_metrics(const MetricTable& table) {
  std::vector<PlottedMetric> plotted;
  plot_rows("error", table.error, plotted);
  plot_rows("timing", table.timing, plotted);
  plot_rows("throughput", table.throughput, plotted);
  std::stable_sort(
      plotted.begin(), plotted.end(),
      [](const PlottedMetric& a, const PlottedMetric& b) { return a.plot.order < b.plot.order; });
  return plotted;
}

}  // namespace attnbench
