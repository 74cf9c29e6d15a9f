#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "report/page.h"
#include "report/problem_fields.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

/// Six digits are more than a plot shows, and a third of the bytes.
Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

/// At most `most` of the samples, evenly spread over the run; their order is that of time.
Json samples_json(const std::vector<double>& samples, std::size_t most) {
  Json json = Json::array();
  const std::size_t kept = std::min(samples.size(), most);
  for (std::size_t i = 0; i < kept; ++i) json.push_back(number(samples[i * samples.size() / kept]));
  return json;
}

Json error_json(const std::optional<ErrorStats>& error) {
  if (!error) return nullptr;
  return {{"max_abs", number(error->max_abs)},
          {"mean_abs", number(error->mean_abs)},
          {"rms_rel", number(error->rms_rel)},
          {"nmse", number(error->nmse)},
          // Why whole: what tells kernels apart is in the sixth digit and beyond.
          {"cosine", std::isfinite(error->cosine) ? Json(error->cosine) : Json(nullptr)},
          {"err_ratio", number(error->err_ratio)},
          {"matched_pct", number(error->matched_pct)},
          {"worst_index", error->worst_index},
          {"worst_actual", number(error->worst_actual)},
          {"worst_expected", number(error->worst_expected)},
          {"checked_rows", error->checked_rows},
          {"total_rows", error->total_rows},
          {"limit", error->limit},
          {"rule", error->rule}};
}

Json timing_json(const std::optional<Timing>& timing, std::size_t most_samples) {
  if (!timing) return nullptr;
  Json json = {{"median_us", number(timing->median_us)},
               {"min_us", number(timing->min_us)},
               {"q1_us", number(timing->q1_us)},
               {"q3_us", number(timing->q3_us)},
               {"mean_us", number(timing->mean_us)},
               {"noise", number(timing->noise)},
               {"l2", timing->l2},
               {"mode", timing->mode},
               {"launch_overhead_us", number(timing->launch_overhead_us)},
               {"total_us", number(timing->total_us)},
               {"num_samples", timing->samples_us.size()}};
  json["samples_us"] = samples_json(timing->samples_us, most_samples);
  if (!timing->rounds.empty()) {
    json["rounds"] = timing->rounds.size();
    json["round_spread"] = number(round_spread(*timing));
  }
  json["steps"] = Json::array();
  for (const StepTiming& step : timing->steps) {
    json["steps"].push_back({{"name", step.name}, {"median_us", number(step.median_us)}});
  }
  if (timing->clocks) {
    json["sm_mhz"] = {timing->clocks->sm_mhz_min, timing->clocks->sm_mhz_median,
                      timing->clocks->sm_mhz_max};
    json["throttling"] = timing->clocks->throttling;
  }
  if (std::isfinite(timing->cpu_wait)) json["cpu_wait"] = number(timing->cpu_wait);
  return json;
}

Json throughput_json(const std::optional<Throughput>& throughput) {
  if (!throughput) return nullptr;
  return {{"tflops", number(throughput->tflops)},
          {"gbps", number(throughput->gbps)},
          {"kv_gbps", number(throughput->kv_gbps)},
          {"tokens_per_s", number(throughput->tokens_per_s)},
          {"flops", number(throughput->flops)},
          {"bytes", number(throughput->bytes)},
          {"roofline_pct", number(throughput->roofline_pct)},
          {"bound", throughput->bound},
          {"ceiling_tflops", number(throughput->ceiling_tflops)},
          {"ceiling_gbps", number(throughput->ceiling_gbps)}};
}

/// Every kernel once; results name them by index.
class Kernels {
 public:
  Json indices(const std::vector<KernelInfo>& kernels) {
    Json json = Json::array();
    for (const KernelInfo& kernel : kernels) {
      const auto [known, is_new] =
          index_.emplace(kernel.cubin_hash + " " + kernel.name, list_.size());
      if (is_new) {
        list_.push_back({{"name", kernel.name},
                         {"registers", kernel.registers},
                         {"spill_bytes", kernel.spill_bytes},
                         {"shared_bytes", kernel.shared_bytes}});
      }
      json.push_back(known->second);
    }
    return json;
  }
  const Json& list() const { return list_; }

 private:
  std::map<std::string, std::size_t> index_;
  Json list_ = Json::array();
};

Json peer_json(const PeerCell& cell, std::size_t rounds) {
  return {{"ratio", number(cell.ratio)},
          {"least", number(cell.least)},
          {"largest", number(cell.largest)},
          {"rounds", rounds}};
}

/// Of the results that stand side by side with others.
std::map<const Result*, Json> peers_of(const std::vector<Result>& results) {
  std::map<const Result*, Json> json;
  for (const PeerCase& peers : peer_cases(results)) {
    for (const PeerCell& cell : peers.cells) json[cell.result] = peer_json(cell, peers.rounds);
  }
  return json;
}

Json result_json(const Result& result, std::size_t file, const ScenarioFields& scenario,
                 std::size_t most_samples, Kernels& kernels) {
  Json json = {{"file", file},
               {"id", result.id},
               {"scenario", result.scenario},
               {"case", result.case_name},
               {"backend", result.backend},
               {"device", result.device},
               {"status", to_string(result.status)},
               {"reasons", result.reasons},
               {"repro", result.repro}};
  json["fields"] = scenario.varying_of(result);
  json["error"] = error_json(result.error);
  json["lse_error"] = error_json(result.lse_error);
  json["quantization_error"] = error_json(result.quantization_error);
  json["timing"] = timing_json(result.timing, most_samples);
  json["throughput"] = throughput_json(result.throughput);
  json["kernels"] = kernels.indices(result.kernels);
  if (result.batch_invariance) json["batch_invariant"] = result.batch_invariance->equal;
  return json;
}

Json cascade_json(const std::vector<Result>& results) {
  Json json = Json::array();
  for (const CascadeRow& row : cascade_rows(results)) {
    Json speedup = Json::array();
    for (const auto& [prefix, value] : row.speedup) speedup.push_back({prefix, number(value)});
    json.push_back({{"scenario", row.scenario},
                    {"case", row.case_name},
                    {"backend", row.backend},
                    {"speedup", speedup},
                    {"pays_from", row.pays_from ? Json(*row.pays_from) : Json(nullptr)}});
  }
  return json;
}

Json file_json(const ResultFile& file) {
  const Environment& environment = file.run.environment;
  Json json = {{"path", file.path},
               {"unfinished", file.is_journal},
               {"created", file.run.created},
               {"version", file.run.tool_version},
               {"git", file.run.git},
               {"command", file.run.command},
               {"hostname", environment.hostname},
               {"cpu", environment.cpu.model},
               {"cores", environment.cpu.cores},
               {"features", environment.cpu.features},
               {"compiler", environment.compiler},
               {"fingerprint", environment.fingerprint},
               {"device", file.device},
               {"cascade", cascade_json(file.results)}};
  if (file.sm_mhz_max > 0) json["sm_mhz"] = {file.sm_mhz_min, file.sm_mhz_max};
  return json;
}

Json comparison_json(const PageComparison& comparison) {
  Json json = {{"file", comparison.file}, {"differences", comparison.differences}};
  json["verdicts"] = Json::array();
  for (const Verdict& verdict : comparison.report.verdicts) {
    json["verdicts"].push_back({{"id", verdict.id},
                                {"kind", to_string(verdict.kind)},
                                {"old_us", number(verdict.old_us)},
                                {"new_us", number(verdict.new_us)},
                                {"rule", verdict.rule},
                                {"fails", verdict.fails}});
  }
  return json;
}

/// Samples of one result on the page, so that the page stays small however many there are.
std::size_t most_samples(const std::vector<ResultFile>& files) {
  constexpr std::size_t kOnPage = 300'000;
  constexpr std::size_t kLeast = 40;
  constexpr std::size_t kMost = 500;
  std::size_t timed = 1;
  for (const ResultFile& file : files) {
    for (const Result& result : file.results) timed += result.timing ? 1 : 0;
  }
  return std::clamp(kOnPage / timed, kLeast, kMost);
}

/// JSON in which no character can end the script element or the line that it stands in. All of
/// them occur in strings only, where an escape means the same.
std::string escape_script(const std::string& json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 64);
  for (std::size_t i = 0; i < json.size(); ++i) {
    const std::string_view rest = std::string_view(json).substr(i, 3);
    if (json[i] == '<' || json[i] == '>' || json[i] == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<unsigned>(json[i]));
    } else if (rest == "\u2028" || rest == "\u2029") {
      safe += rest == "\u2028" ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      safe += json[i];
    }
  }
  return safe;
}

}  // namespace

std::string page_data(const std::vector<ResultFile>& files,
                      const std::vector<PageComparison>& comparisons) {
  const std::map<std::string, ScenarioFields> scenarios = scenario_fields(files);
  const std::size_t most = most_samples(files);
  Kernels kernels;
  Json data = {{"files", Json::array()}, {"scenarios", Json::object()}};
  for (const auto& [name, scenario] : scenarios) {
    data["scenarios"][name] = {{"axes", scenario.axes()}, {"common", scenario.common()}};
  }
  data["results"] = Json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    data["files"].push_back(file_json(files[i]));
    const std::map<const Result*, Json> peers = peers_of(files[i].results);
    for (const Result& result : files[i].results) {
      Json json = result_json(result, i, scenarios.at(result.scenario), most, kernels);
      const auto peer = peers.find(&result);
      if (peer != peers.end()) json["peer"] = peer->second;
      data["results"].push_back(std::move(json));
    }
  }
  data["kernels"] = kernels.list();
  data["comparisons"] = Json::array();
  for (const PageComparison& comparison : comparisons) {
    data["comparisons"].push_back(comparison_json(comparison));
  }
  return escape_script(data.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace attnbench
