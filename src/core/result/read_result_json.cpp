#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/result/result_json.h"

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

ErrorStats read_error(const Reader& json) {
  ErrorStats stats;
  json.read("max_abs", stats.max_abs);
  json.read("mean_abs", stats.mean_abs);
  json.read("rms_rel", stats.rms_rel);
  json.read("nmse", stats.nmse);
  json.read("cosine", stats.cosine);
  json.read("err_ratio", stats.err_ratio);
  json.read("matched_pct", stats.matched_pct);
  json.read_if_there("worst_index", stats.worst_index);
  json.read("nan_count", stats.nan_count);
  json.read("inf_count", stats.inf_count);
  json.read("checked_rows", stats.checked_rows);
  json.read("total_rows", stats.total_rows);
  json.read("limit", stats.limit);
  json.read("rule", stats.rule);
  if (!stats.worst_index.empty()) {
    json.read("worst_actual", stats.worst_actual);
    json.read("worst_expected", stats.worst_expected);
  }
  return stats;
}

std::optional<ErrorStats> read_error_if_there(const Reader& json, const char* key) {
  if (json.is_null(key)) return std::nullopt;
  return read_error(json.object(key));
}

DeviceClocks read_clocks(const Reader& json) {
  DeviceClocks clocks;
  json.read("sm_mhz_min", clocks.sm_mhz_min);
  json.read("sm_mhz_median", clocks.sm_mhz_median);
  json.read("sm_mhz_max", clocks.sm_mhz_max);
  json.read("throttling", clocks.throttling);
  return clocks;
}

void read_rounds(const Reader& json, Timing& timing) {
  json.read_if_there("rounds", timing.rounds);
  if (timing.rounds.empty()) return;
  auto left = static_cast<std::int64_t>(timing.samples_us.size());
  for (const std::int64_t samples : timing.rounds) {
    if (samples < 1 || samples > left) left = 0;
    left -= samples;
  }
  if (left == 0) return;
  fail(ErrorKind::kFormat, "{}: the rounds are not those of samples_us", json.path("rounds"));
}

Timing read_timing(const Reader& json) {
  Timing timing;
  json.read("median_us", timing.median_us);
  json.read("min_us", timing.min_us);
  json.read("q1_us", timing.q1_us);
  json.read("q3_us", timing.q3_us);
  json.read("mean_us", timing.mean_us);
  json.read("stdev_us", timing.stdev_us);
  json.read("noise", timing.noise);
  json.read("samples_us", timing.samples_us);
  read_rounds(json, timing);
  json.read_if_there("peers", timing.peers);
  json.read("l2", timing.l2);
  json.read("mode", timing.mode);
  json.read("launch_overhead_us", timing.launch_overhead_us);
  json.each("steps", [&](const Reader& item) {
    StepTiming& step = timing.steps.emplace_back();
    item.read("name", step.name);
    item.read("median_us", step.median_us);
    item.read("bytes", step.bytes);
    item.read("flops", step.flops);
  });
  json.read("total_us", timing.total_us);
  json.read_if_there("flushed_bytes", timing.flushed_bytes);
  if (!json.is_null("clocks")) timing.clocks = read_clocks(json.object("clocks"));
  json.read_if_there("waits_us", timing.waits_us);
  json.read_if_there("cpu_wait", timing.cpu_wait);
  return timing;
}

Throughput read_throughput(const Reader& json) {
  Throughput throughput;
  json.read("tflops", throughput.tflops);
  json.read("gbps", throughput.gbps);
  json.read("kv_gbps", throughput.kv_gbps);
  json.read("tokens_per_s", throughput.tokens_per_s);
  json.read("flops", throughput.flops);
  json.read("bytes", throughput.bytes);
  json.read("roofline_pct", throughput.roofline_pct);
  json.read_if_there("bound", throughput.bound);
  json.read_if_there("ceiling_tflops", throughput.ceiling_tflops);
  json.read_if_there("ceiling_gbps", throughput.ceiling_gbps);
  return throughput;
}

Status read_status(const Reader& json) {
  std::string text;
  json.read("status", text);
  const std::optional<Status> status = status_from_string(text);
  if (!status) fail(ErrorKind::kFormat, "result.status: unknown status '{}'", text);
  return *status;
}

Result read_result(const Reader& json) {
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
  result.error = read_error_if_there(json, "error");
  result.lse_error = read_error_if_there(json, "lse_error");
  result.quantization_error = read_error_if_there(json, "quantization_error");
  json.each("rank_errors", [&](const Reader& item) {
    RankErrors& rank = result.rank_errors.emplace_back();
    item.read("rank", rank.rank);
    rank.error = read_error(item.object("error"));
    rank.lse_error = read_error(item.object("lse_error"));
  });
  if (!json.is_null("batch_invariance")) {
    const Reader item = json.object("batch_invariance");
    BatchInvariance& invariance = result.batch_invariance.emplace();
    item.read("request", invariance.request);
    item.read("equal", invariance.equal);
    item.read("max_abs", invariance.max_abs);
  }
  if (!json.is_null("timing")) result.timing = read_timing(json.object("timing"));
  if (!json.is_null("throughput")) {
    result.throughput = read_throughput(json.object("throughput"));
  }
  json.each("kernels", [&](const Reader& item) {
    KernelInfo& kernel = result.kernels.emplace_back();
    item.read("name", kernel.name);
    item.read("registers", kernel.registers);
    item.read("spill_bytes", kernel.spill_bytes);
    item.read("shared_bytes", kernel.shared_bytes);
    item.read("cubin_hash", kernel.cubin_hash);
  });
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

Result result_from_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail(ErrorKind::kFormat, "result: not JSON");
  return read_result({json, "result"});
}

}  // namespace attnbench
