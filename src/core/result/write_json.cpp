// Writing of results. The order of keys is fixed: result files are compared as text by users and
// tests. JSON has no NaN and no infinity, so such a number is null and a note beside it says why; a
// reader may rely on a number being a number.
#include "core/result/write_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "core/error.h"
#include "core/parsing.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

/// Adds numbers to an object; one that does not exist becomes null, and a note says why.
class Numbers {
 public:
  explicit Numbers(Json& object) : object_(object) {}

  /// `why_null` null or "": the note says what the value is instead of a number.
  void add(const char* key, double value, const char* why_null) {
    if (std::isfinite(value)) {
      object_[key] = value;
      return;
    }
    object_[key] = nullptr;
    const char* what = std::isnan(value) ? "not a number" : value > 0 ? "infinite" : "-infinite";
    const bool has_reason = why_null != nullptr && *why_null != 0;
    notes_.push_back(std::string(key) + ": " + (has_reason ? why_null : what));
  }
  /// The object gets `notes` only when there is something to say.
  void finish() {
    if (!notes_.empty()) object_["notes"] = notes_;
  }

 private:
  Json& object_;
  Json notes_ = Json::array();
};

Json steps_json(const std::vector<StepTiming>& steps) {
  Json json = Json::array();
  for (const StepTiming& step : steps) {
    Json item = Json::object();
    item["name"] = step.name;
    Numbers numbers(item);
    numbers.add("median_us", step.median_us, nullptr);
    numbers.add("bytes", step.bytes, nullptr);
    numbers.add("flops", step.flops, nullptr);
    numbers.finish();
    json.push_back(std::move(item));
  }
  return json;
}

Json clocks_json(const DeviceClocks& clocks) {
  return {{"sm_mhz_min", clocks.sm_mhz_min},
          {"sm_mhz_median", clocks.sm_mhz_median},
          {"sm_mhz_max", clocks.sm_mhz_max},
          {"throttling", clocks.throttling}};
}

template <typename T>
bool is_none(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value == 0;
  } else {
    return value.empty();
  }
}

/// Writes the value of one row, whatever holds it.
template <typename Part>
struct RowWriter {
  const MetricRow<Part>& row;
  const Part& part;
  Json& json;
  Numbers& numbers;

  void operator()(ByName) const {
    const double value = number_of(row, part);
    if (std::isfinite(value)) json[row.name] = value;
  }
  void operator()(double Part::*member) const { write_number(part.*member); }
  void operator()(double (*compute)(const Part&)) const { write_number(compute(part)); }
  void operator()(std::vector<double> (*compute)(const Part&)) const {
    json[row.name] = compute(part);
  }
  void operator()(std::vector<StepTiming> Part::*member) const {
    json[row.name] = steps_json(part.*member);
  }
  void operator()(std::optional<DeviceClocks> Part::*member) const {
    if (part.*member) json[row.name] = clocks_json(*(part.*member));
  }
  template <typename T>
  void operator()(T Part::*member) const {
    const T& value = part.*member;
    if (row.presence == Presence::kAlways || !is_none(value)) {
      json[row.name] = value;
    } else if (row.presence == Presence::kOrNull) {
      json[row.name] = nullptr;
    }
  }

 private:
  void write_number(double value) const {
    if (row.presence == Presence::kIfSet && !std::isfinite(value)) return;
    numbers.add(row.name, value, row.why_null ? row.why_null(part) : nullptr);
  }
};

/// A number that no row knows would be lost on its way to a file.
template <typename Part>
void check_names(const std::vector<MetricRow<Part>>& rows, const Part& part) {
  for (const auto& [name, value] : part.by_name) {
    const bool known = std::any_of(rows.begin(), rows.end(), [&](const MetricRow<Part>& row) {
      return std::holds_alternative<ByName>(row.place) && row.name == name;
    });
    if (!known) fail(ErrorKind::kInternal, "the metric table has no row '{}'", name);
  }
}

template <typename Part>
Json part_json(const std::vector<MetricRow<Part>>& rows, const Part& part) {
  check_names(rows, part);
  Json json = Json::object();
  Numbers numbers(json);
  for (const MetricRow<Part>& row : rows) {
    if (row.applies && !row.applies(part)) continue;
    std::visit(RowWriter<Part>{row, part, json, numbers}, row.place);
  }
  numbers.finish();
  return json;
}
template <typename Part>
Json part_json(const std::vector<MetricRow<Part>>& rows, const std::optional<Part>& part) {
  return part ? part_json(rows, *part) : Json(nullptr);
}

Json place_json(const RowPlace& place) {
  return {{"request", place.request},
          {"token", place.token},
          {"position", place.position},
          {"head", place.head}};
}

/// The numbers of the table, and the row that they are of.
Json error_json(const std::vector<MetricRow<ErrorStats>>& rows,
                const std::optional<ErrorStats>& error) {
  Json json = part_json(rows, error);
  if (error && error->worst_row.token >= 0) json["worst_row"] = place_json(error->worst_row);
  return json;
}

Json rank_errors_json(const std::vector<RankErrors>& ranks, const MetricTable& table) {
  Json json = Json::array();
  for (const RankErrors& rank : ranks) {
    json.push_back({{"rank", rank.rank},
                    {"error", error_json(table.error, rank.error)},
                    {"lse_error", error_json(table.error, rank.lse_error)}});
  }
  return json;
}

Json sample_checks_json(const std::vector<SampleCheck>& checks) {
  Json json = Json::array();
  for (const SampleCheck& check : checks) {
    Json item = {{"sample", check.sample}};
    Numbers numbers(item);
    numbers.add("row_error", check.row_error, nullptr);
    numbers.add("row_limit", check.row_limit, nullptr);
    numbers.finish();
    if (check.screened_rows > 0) item["screened_rows"] = check.screened_rows;
    json.push_back(std::move(item));
  }
  return json;
}

Json fingerprint_json(const Fingerprint& print) {
  Json json = Json::object();
  if (print.sum_bits) {
    json["sum_bits"] = *print.sum_bits;
    json["sum_bits_at_least"] = print.sum_bits_at_least;
  }
  if (!print.probability.empty()) json["probability"] = print.probability;
  if (!print.output_rounding.empty()) json["output_rounding"] = print.output_rounding;
  json["biased"] = Json::array();
  for (const BiasedError& error : print.biased) {
    Json item = {{"keys", error.keys}};
    Numbers numbers(item);
    numbers.add("rms_rel", error.rms_rel, nullptr);
    numbers.finish();
    json["biased"].push_back(std::move(item));
  }
  return json;
}

Json kernels_json(const std::vector<KernelInfo>& kernels) {
  Json json = Json::array();
  for (const KernelInfo& kernel : kernels) {
    json.push_back({{"name", kernel.name},
                    {"registers", kernel.registers},
                    {"spill_bytes", kernel.spill_bytes},
                    {"shared_bytes", kernel.shared_bytes},
                    {"cubin_hash", kernel.cubin_hash}});
  }
  return json;
}

Json result_json(const Result& result, const MetricTable& table) {
  Json json = Json::object();
  json["id"] = result.id;
  json["scenario"] = result.scenario;
  json["case"] = result.case_name;
  json["backend"] = result.backend;
  json["device"] = result.device;
  json["status"] = to_string(result.status);
  json["reasons"] = result.reasons;
  Json problem = parse_json<Json>(result.problem_json);
  json["problem"] = problem.is_discarded() ? Json(nullptr) : std::move(problem);
  if (!result.file_hashes.empty()) json["file_hashes"] = result.file_hashes;
  json["error"] = error_json(table.error, result.error);
  json["lse_error"] = error_json(table.error, result.lse_error);
  json["quantization_error"] = part_json(table.error, result.quantization_error);
  if (result.probe_error) json["probe_error"] = error_json(table.error, result.probe_error);
  if (result.probe_lse_error) {
    json["probe_lse_error"] = error_json(table.error, result.probe_lse_error);
  }
  if (result.blind_to) json["blind_to"] = *result.blind_to;
  if (result.sample_seed) json["sample_seed"] = *result.sample_seed;
  if (result.fingerprint) json["fingerprint"] = fingerprint_json(*result.fingerprint);
  if (!result.rank_errors.empty()) {
    json["rank_errors"] = rank_errors_json(result.rank_errors, table);
  }
  if (result.batch_invariance) {
    json["batch_invariance"] = {{"request", result.batch_invariance->request},
                                {"equal", result.batch_invariance->equal},
                                {"max_abs", result.batch_invariance->max_abs}};
  }
  json["timing"] = part_json(table.timing, result.timing);
  if (result.timing && !result.timing->checked_samples.empty()) {
    json["timing"]["checked_samples"] = sample_checks_json(result.timing->checked_samples);
  }
  json["throughput"] = part_json(table.throughput, result.throughput);
  if (!result.run_seconds.empty()) json["run_seconds"] = result.run_seconds;
  json["kernels"] = kernels_json(result.kernels);
  if (result.cascade_heuristic) json["cascade_heuristic"] = *result.cascade_heuristic;
  if (!result.forced_kernel.empty()) json["forced_kernel"] = result.forced_kernel;
  if (result.plugin) {
    json["plugin"] = {{"library", result.plugin->library},
                      {"version", result.plugin->version},
                      {"sha256", result.plugin->sha256}};
  }
  json["repro"] = result.repro;
  return json;
}

}  // namespace

std::string result_to_json(const Result& result, int indent, const MetricTable& table) {
  return result_json(result, table)
      .dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace attnbench
