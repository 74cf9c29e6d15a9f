// Reading of results. Strict about what it uses and blind to the rest: a missing or mistyped key is
// named by its path, an unknown one is skipped, so that a file which says more can be read. Numbers
// go through the metric table, the same rows that wrote them.
#include "core/result/read_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

#include "core/error.h"
#include "core/parsing.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

/// A member that must be there; its absence and a wrong type are named by the path from the result.
class Reader {
 public:
  Reader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) fail(ErrorKind::kFormat, "{}: expected an object", path_);
  }

  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(ErrorKind::kFormat, "{}.{} is missing", path_, key);
    return *found;
  }
  template <typename T>
  void read(const char* key, T& value) const {
    try {
      at(key).get_to(value);
    } catch (const Json::exception&) {
      fail(ErrorKind::kFormat, "{}.{} has the wrong type: {}", path_, key, at(key).dump());
    }
  }
  void read(const char* key, double& value) const {
    const Json& number = at(key);
    if (number.is_null()) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (number.is_number()) {
      value = number.get<double>();
    } else {
      fail(ErrorKind::kFormat, "{}.{}: expected a number, found {}", path_, key, number.dump());
    }
  }
  template <typename T>
  void read_if_there(const char* key, T& value) const {
    const auto found = object_.find(key);
    if (found != object_.end() && !found->is_null()) read(key, value);
  }
  std::string path(const char* key) const { return path_ + "." + key; }
  Reader object(const char* key) const { return {at(key), path_ + "." + key}; }
  bool is_null(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null();
  }
  /// Calls `use` with a Reader of every element of an array that may be missing.
  template <typename Use>
  void each(const char* key, Use use) const {
    if (is_null(key)) return;
    if (!at(key).is_array()) fail(ErrorKind::kFormat, "{}.{}: expected a list", path_, key);
    for (const Json& item : at(key)) use(Reader(item, path_ + "." + key));
  }

 private:
  const Json& object_;
  std::string path_;
};

DeviceClocks read_clocks(const Reader& json) {
  DeviceClocks clocks;
  json.read("sm_mhz_min", clocks.sm_mhz_min);
  json.read("sm_mhz_median", clocks.sm_mhz_median);
  json.read("sm_mhz_max", clocks.sm_mhz_max);
  json.read("throttling", clocks.throttling);
  return clocks;
}

std::vector<StepTiming> read_steps(const Reader& json, const char* key) {
  std::vector<StepTiming> steps;
  json.each(key, [&](const Reader& item) {
    StepTiming& step = steps.emplace_back();
    item.read("name", step.name);
    item.read("median_us", step.median_us);
    item.read("bytes", step.bytes);
    item.read("flops", step.flops);
  });
  return steps;
}

/// Reads the value of one row to where the row has it. What is computed from others is not read.
template <typename Part>
struct RowReader {
  const MetricRow<Part>& row;
  const Reader& json;
  Part& part;

  void operator()(ByName) const {
    double value = std::numeric_limits<double>::quiet_NaN();
    json.read_if_there(row.name, value);
    set_number(row, part, value);
  }
  void operator()(double (*)(const Part&)) const {}
  void operator()(std::vector<double> (*)(const Part&)) const {}
  void operator()(std::vector<StepTiming> Part::*member) const {
    part.*member = read_steps(json, row.name);
  }
  void operator()(std::optional<DeviceClocks> Part::*member) const {
    if (!json.is_null(row.name)) part.*member = read_clocks(json.object(row.name));
  }
  template <typename T>
  void operator()(T Part::*member) const {
    if (row.presence == Presence::kAlways) {
      json.read(row.name, part.*member);
    } else {
      json.read_if_there(row.name, part.*member);
    }
  }
};

template <typename Part>
Part read_part(const std::vector<MetricRow<Part>>& rows, const Reader& json) {
  Part part;
  for (const MetricRow<Part>& row : rows) {
    if (row.applies && !row.applies(part)) continue;
    std::visit(RowReader<Part>{row, json, part}, row.place);
    const char* mistake = row.mistake ? row.mistake(part) : nullptr;
    if (mistake != nullptr) fail(ErrorKind::kFormat, "{}: {}", json.path(row.name), mistake);
  }
  return part;
}

/// Nothing where the key is missing or null.
template <typename Part>
std::optional<Part> read_part(const std::vector<MetricRow<Part>>& rows, const Reader& json,
                              const char* key) {
  if (json.is_null(key)) return std::nullopt;
  return read_part(rows, json.object(key));
}

/// The numbers of the table, and the row that they are of.
ErrorStats read_error(const std::vector<MetricRow<ErrorStats>>& rows, const Reader& json) {
  ErrorStats error = read_part(rows, json);
  if (json.is_null("worst_row")) return error;
  const Reader place = json.object("worst_row");
  place.read("request", error.worst_row.request);
  place.read("token", error.worst_row.token);
  place.read("position", error.worst_row.position);
  place.read("head", error.worst_row.head);
  return error;
}

std::optional<ErrorStats> read_error(const std::vector<MetricRow<ErrorStats>>& rows,
                                     const Reader& json, const char* key) {
  if (json.is_null(key)) return std::nullopt;
  return read_error(rows, json.object(key));
}

Fingerprint read_fingerprint(const Reader& json) {
  Fingerprint print;
  if (!json.is_null("sum_bits")) {
    json.read("sum_bits", print.sum_bits.emplace());
    json.read("sum_bits_at_least", print.sum_bits_at_least);
  }
  json.read_if_there("probability", print.probability);
  json.read_if_there("output_rounding", print.output_rounding);
  json.each("biased", [&](const Reader& item) {
    BiasedError& error = print.biased.emplace_back();
    item.read("keys", error.keys);
    item.read("rms_rel", error.rms_rel);
  });
  return print;
}

Status read_status(const Reader& json) {
  std::string text;
  json.read("status", text);
  const std::optional<Status> status = enum_from_name<Status>(text);
  if (!status) fail(ErrorKind::kFormat, "result.status: unknown status '{}'", text);
  return *status;
}

Result read_result(const Reader& json, const MetricTable& table) {
  Result result;
  json.read("id", result.id);
  json.read("scenario", result.scenario);
  json.read("case", result.case_name);
  json.read("backend", result.backend);
  json.read("device", result.device);
  result.status = read_status(json);
  json.read("reasons", result.reasons);
  result.problem_json = json.at("problem").dump();
  json.read_if_there("file_hashes", result.file_hashes);
  result.error = read_error(table.error, json, "error");
  result.lse_error = read_error(table.error, json, "lse_error");
  result.quantization_error = read_error(table.error, json, "quantization_error");
  result.probe_error = read_error(table.error, json, "probe_error");
  result.probe_lse_error = read_error(table.error, json, "probe_lse_error");
  if (!json.is_null("blind_to")) json.read("blind_to", result.blind_to.emplace());
  if (!json.is_null("sample_seed")) json.read("sample_seed", result.sample_seed.emplace());
  if (!json.is_null("fingerprint")) {
    result.fingerprint = read_fingerprint(json.object("fingerprint"));
  }
  json.each("rank_errors", [&](const Reader& item) {
    RankErrors& rank = result.rank_errors.emplace_back();
    item.read("rank", rank.rank);
    rank.error = read_error(table.error, item.object("error"));
    rank.lse_error = read_error(table.error, item.object("lse_error"));
  });
  if (!json.is_null("batch_invariance")) {
    const Reader item = json.object("batch_invariance");
    BatchInvariance& invariance = result.batch_invariance.emplace();
    item.read("request", invariance.request);
    item.read("equal", invariance.equal);
    item.read("max_abs", invariance.max_abs);
  }
  result.timing = read_part(table.timing, json, "timing");
  if (result.timing) {
    json.object("timing").each("checked_samples", [&](const Reader& item) {
      SampleCheck& check = result.timing->checked_samples.emplace_back();
      item.read("sample", check.sample);
      item.read("row_error", check.row_error);
      item.read("row_limit", check.row_limit);
      item.read_if_there("screened_rows", check.screened_rows);
    });
  }
  result.throughput = read_part(table.throughput, json, "throughput");
  json.read_if_there("run_seconds", result.run_seconds);
  json.each("kernels", [&](const Reader& item) {
    KernelInfo& kernel = result.kernels.emplace_back();
    item.read("name", kernel.name);
    item.read("registers", kernel.registers);
    item.read("spill_bytes", kernel.spill_bytes);
    item.read("shared_bytes", kernel.shared_bytes);
    item.read("cubin_hash", kernel.cubin_hash);
  });
  if (!json.is_null("cascade_heuristic")) {
    json.read("cascade_heuristic", result.cascade_heuristic.emplace());
  }
  json.read_if_there("forced_kernel", result.forced_kernel);
  if (!json.is_null("plugin")) {
    const Reader item = json.object("plugin");
    PluginInfo& plugin = result.plugin.emplace();
    item.read("library", plugin.library);
    item.read("version", plugin.version);
    item.read("sha256", plugin.sha256);
  }
  json.read("repro", result.repro);
  return result;
}

}  // namespace

bool nests_too_deep(std::string_view json) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Result result_from_json(const std::string& text, const MetricTable& table) {
  if (nests_too_deep(text)) fail(ErrorKind::kFormat, "result: nested too deep");
  const Json json = parse_json<Json>(text);
  if (json.is_discarded()) fail(ErrorKind::kFormat, "result: not JSON");
  return result_from_document(json, table);
}

Result result_from_document(const Json& json, const MetricTable& table) {
  return read_result({json, "result"}, table);
}

}  // namespace attnbench
