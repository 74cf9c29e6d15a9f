#include "core/result/result_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

/// Adds numbers to an object; one that does not exist becomes null, and a note says why.
class Numbers {
 public:
  explicit Numbers(Json& object) : object_(object) {}

  void add(const char* key, double value, std::string_view why_missing) {
    if (std::isfinite(value)) {
      object_[key] = value;
      return;
    }
    object_[key] = nullptr;
    const char* what = std::isnan(value) ? "not a number" : value > 0 ? "infinite" : "-infinite";
    notes_.push_back(std::string(key) + ": " +
                     std::string(why_missing.empty() ? what : why_missing));
  }
  /// The object gets `notes` only when there is something to say.
  void finish() {
    if (!notes_.empty()) object_["notes"] = notes_;
  }

 private:
  Json& object_;
  Json notes_ = Json::array();
};

constexpr std::string_view kNoFinite = "no element is finite in both output and reference";
constexpr std::string_view kOneSample = "needs more than one sample";

Json error_json(const std::optional<ErrorStats>& stats) {
  if (!stats) return nullptr;
  Json json = Json::object();
  Numbers numbers(json);
  numbers.add("max_abs", stats->max_abs, kNoFinite);
  numbers.add("mean_abs", stats->mean_abs, kNoFinite);
  const bool compared = std::isfinite(stats->max_abs);
  const std::string_view no_norm = compared ? "the reference is zero" : kNoFinite;
  numbers.add("rms_rel", stats->rms_rel, no_norm);
  numbers.add("nmse", stats->nmse, no_norm);
  numbers.add("cosine", stats->cosine, compared ? "one of the vectors is zero" : kNoFinite);
  numbers.add("err_ratio", stats->err_ratio,
              "the same maths in storage precision has no error, or was not computed");
  numbers.add("matched_pct", stats->matched_pct, {});
  json["worst_index"] = stats->worst_index.empty() ? Json(nullptr) : Json(stats->worst_index);
  json["nan_count"] = stats->nan_count;
  json["inf_count"] = stats->inf_count;
  json["checked_rows"] = stats->checked_rows;
  json["total_rows"] = stats->total_rows;
  json["limit"] = stats->limit;
  json["rule"] = stats->rule;
  if (!stats->worst_index.empty()) {
    numbers.add("worst_actual", stats->worst_actual, {});
    numbers.add("worst_expected", stats->worst_expected, {});
  }
  numbers.finish();
  return json;
}

Json rank_errors_json(const std::vector<RankErrors>& ranks) {
  Json json = Json::array();
  for (const RankErrors& rank : ranks) {
    json.push_back({{"rank", rank.rank},
                    {"error", error_json(rank.error)},
                    {"lse_error", error_json(rank.lse_error)}});
  }
  return json;
}

Json steps_json(const std::vector<StepTiming>& steps) {
  Json json = Json::array();
  for (const StepTiming& step : steps) {
    Json item = Json::object();
    item["name"] = step.name;
    Numbers numbers(item);
    numbers.add("median_us", step.median_us, {});
    numbers.add("bytes", step.bytes, {});
    numbers.add("flops", step.flops, {});
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

Json timing_json(const std::optional<Timing>& timing) {
  if (!timing) return nullptr;
  Json json = Json::object();
  Numbers numbers(json);
  numbers.add("median_us", timing->median_us, {});
  numbers.add("min_us", timing->min_us, {});
  numbers.add("q1_us", timing->q1_us, {});
  numbers.add("q3_us", timing->q3_us, {});
  numbers.add("mean_us", timing->mean_us, {});
  numbers.add("stdev_us", timing->stdev_us, kOneSample);
  numbers.add("noise", timing->noise, kOneSample);
  json["samples_us"] = timing->samples_us;
  if (!timing->rounds.empty()) {
    json["rounds"] = timing->rounds;
    json["round_medians_us"] = round_medians_us(*timing);
    numbers.add("round_spread", round_spread(*timing), "needs more than one round");
  }
  if (!timing->peers.empty()) json["peers"] = timing->peers;
  json["l2"] = timing->l2;
  json["mode"] = timing->mode;
  numbers.add("launch_overhead_us", timing->launch_overhead_us, {});
  json["steps"] = steps_json(timing->steps);
  numbers.add("total_us", timing->total_us, {});
  if (timing->flushed_bytes > 0) json["flushed_bytes"] = timing->flushed_bytes;
  if (timing->clocks) json["clocks"] = clocks_json(*timing->clocks);
  if (!timing->waits_us.empty()) json["waits_us"] = timing->waits_us;
  if (std::isfinite(timing->cpu_wait)) json["cpu_wait"] = timing->cpu_wait;
  numbers.finish();
  return json;
}

Json throughput_json(const std::optional<Throughput>& throughput) {
  if (!throughput) return nullptr;
  Json json = Json::object();
  Numbers numbers(json);
  constexpr std::string_view kNoTime = "the time is too short to be measured";
  numbers.add("tflops", throughput->tflops, kNoTime);
  numbers.add("gbps", throughput->gbps, kNoTime);
  numbers.add("kv_gbps", throughput->kv_gbps, kNoTime);
  numbers.add("tokens_per_s", throughput->tokens_per_s, kNoTime);
  numbers.add("flops", throughput->flops, {});
  numbers.add("bytes", throughput->bytes, {});
  numbers.add("roofline_pct", throughput->roofline_pct, "no ceiling of this device was measured");
  json["bound"] = throughput->bound.empty() ? Json(nullptr) : Json(throughput->bound);
  // Why not null: files of older versions lack them too.
  if (std::isfinite(throughput->ceiling_tflops)) {
    json["ceiling_tflops"] = throughput->ceiling_tflops;
  }
  if (std::isfinite(throughput->ceiling_gbps)) json["ceiling_gbps"] = throughput->ceiling_gbps;
  numbers.finish();
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

Json result_json(const Result& result) {
  Json json = Json::object();
  json["id"] = result.id;
  json["scenario"] = result.scenario;
  json["case"] = result.case_name;
  json["backend"] = result.backend;
  json["device"] = result.device;
  json["status"] = to_string(result.status);
  json["reasons"] = result.reasons;
  Json problem = Json::parse(result.problem_json, nullptr, /*allow_exceptions=*/false);
  json["problem"] = problem.is_discarded() ? Json(nullptr) : std::move(problem);
  if (!result.file_hashes.empty()) json["file_hashes"] = result.file_hashes;
  json["error"] = error_json(result.error);
  json["lse_error"] = error_json(result.lse_error);
  json["quantization_error"] = error_json(result.quantization_error);
  if (!result.rank_errors.empty()) json["rank_errors"] = rank_errors_json(result.rank_errors);
  if (result.batch_invariance) {
    json["batch_invariance"] = {{"request", result.batch_invariance->request},
                                {"equal", result.batch_invariance->equal},
                                {"max_abs", result.batch_invariance->max_abs}};
  }
  json["timing"] = timing_json(result.timing);
  json["throughput"] = throughput_json(result.throughput);
  json["kernels"] = kernels_json(result.kernels);
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

std::string result_to_json(const Result& result, int indent) {
  return result_json(result).dump(indent, ' ', /*ensure_ascii=*/false,
                                  Json::error_handler_t::replace);
}

}  // namespace attnbench
