#include "report/page_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "core/parsing.h"
#include "report/problem_fields.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

/// Six digits are more than a plot shows, and a third of the bytes.
Json page_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

/// At most `most` of the samples, evenly spread over the run; their order is that of time.
Json samples_json(const std::vector<double>& samples, std::size_t most) {
  Json json = Json::array();
  const std::size_t kept = std::min(samples.size(), most);
  for (std::size_t i = 0; i < kept; ++i)
    json.push_back(page_number(samples[i * samples.size() / kept]));
  return json;
}

/// Writes the value of one row, where the page has it.
template <typename Part>
struct RowWriter {
  const MetricRow<Part>& row;
  const Part& part;
  Json& json;

  void operator()(ByName) const {
    const double value = number_of(row, part);
    if (std::isfinite(value)) write_number(value);
  }
  void operator()(double Part::*member) const { write_number(part.*member); }
  void operator()(std::int64_t Part::*member) const { json[row.name] = part.*member; }
  void operator()(std::uint64_t Part::*member) const { json[row.name] = part.*member; }
  void operator()(std::string Part::*member) const { json[row.name] = part.*member; }
  void operator()(double (*compute)(const Part&)) const { write_number(compute(part)); }
  /// The lists of a result are too long for a page, but where an error is worst is a place.
  void operator()(std::vector<std::int64_t> Part::*member) const {
    json[row.name] = part.*member;
    if constexpr (std::is_same_v<Part, ErrorStats>) {
      json["worst_actual"] = page_number(part.worst_actual);
      json["worst_expected"] = page_number(part.worst_expected);
    }
  }
  template <typename Place>
  void operator()(const Place&) const {}

 private:
  void write_number(double value) const {
    const bool is_whole = row.on_page == OnPage::kWhole && std::isfinite(value);
    json[row.name] = is_whole ? Json(value) : page_number(value);
  }
};

template <typename Part>
Json rows_json(const std::vector<MetricRow<Part>>& rows, const Part& part) {
  Json json = Json::object();
  for (const MetricRow<Part>& row : rows) {
    const bool applies = !row.applies || row.applies(part);
    if (row.on_page == OnPage::kNo || !applies) continue;
    std::visit(RowWriter<Part>{row, part, json}, row.place);
  }
  return json;
}
template <typename Part>
Json rows_json(const std::vector<MetricRow<Part>>& rows, const std::optional<Part>& part) {
  return part ? rows_json(rows, *part) : Json(nullptr);
}

Json timing_json(const std::vector<MetricRow<Timing>>& rows, const std::optional<Timing>& timing,
                 std::size_t most_samples) {
  if (!timing) return nullptr;
  Json json = rows_json(rows, *timing);
  json["num_samples"] = timing->samples_us.size();
  json["samples_us"] = samples_json(timing->samples_us, most_samples);
  if (!timing->rounds.empty()) {
    json["rounds"] = timing->rounds.size();
    json["round_spread"] = page_number(round_spread(*timing));
  }
  json["steps"] = Json::array();
  for (const StepTiming& step : timing->steps) {
    json["steps"].push_back({{"name", step.name}, {"median_us", page_number(step.median_us)}});
  }
  if (timing->clocks) {
    json["sm_mhz"] = {timing->clocks->sm_mhz_min, timing->clocks->sm_mhz_median,
                      timing->clocks->sm_mhz_max};
    json["throttling"] = timing->clocks->throttling;
  }
  if (!timing->pace.empty()) json["pace"] = timing->pace;
  if (std::isfinite(timing->cpu_wait)) json["cpu_wait"] = page_number(timing->cpu_wait);
  return json;
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
  return {{"ratio", page_number(cell.ratio)},
          {"least", page_number(cell.least)},
          {"largest", page_number(cell.largest)},
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
                 const MetricTable& table, std::size_t most_samples, Kernels& kernels) {
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
  json["error"] = rows_json(table.error, result.error);
  json["lse_error"] = rows_json(table.error, result.lse_error);
  json["quantization_error"] = rows_json(table.error, result.quantization_error);
  const Json problem = parse_json<Json>(result.problem_json);
  const double kv_bytes = kv_bytes_per_token(problem);
  if (std::isfinite(kv_bytes)) json["kv_bytes_per_token"] = page_number(kv_bytes);
  json["timing"] = timing_json(table.timing, result.timing, most_samples);
  json["throughput"] = rows_json(table.throughput, result.throughput);
  json["kernels"] = kernels.indices(result.kernels);
  if (result.batch_invariance) json["batch_invariant"] = result.batch_invariance->equal;
  return json;
}

Json cascade_json(const std::vector<Result>& results) {
  Json json = Json::array();
  for (const CascadeRow& row : cascade_rows(results)) {
    Json speedup = Json::array();
    for (const auto& [prefix, value] : row.speedup) speedup.push_back({prefix, page_number(value)});
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
                                {"old_us", page_number(verdict.old_us)},
                                {"new_us", page_number(verdict.new_us)},
                                {"rule", verdict.rule},
                                {"fails", verdict.fails}});
  }
  return json;
}

/// What the page can plot, and how: model.js makes its METRICS of it.
Json metrics_json(const MetricTable& table) {
  const auto direction = [](Better better) {
    return better == Better::kLess ? "less" : better == Better::kMore ? "more" : "neither";
  };
  Json json = Json::array();
  for (const PlottedMetric& metric : plotted_metrics(table)) {
    json.push_back({{"key", metric.plot.key},
                    {"name", metric.plot.title},
                    {"at", {metric.part, metric.name}},
                    {"factor", metric.plot.factor},
                    {"format", metric.plot.format},
                    {"better", direction(metric.better)}});
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
                      const std::vector<PageComparison>& comparisons, const MetricTable& table) {
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
      Json json = result_json(result, i, scenarios.at(result.scenario), table, most, kernels);
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
  data["metrics"] = metrics_json(table);
  return escape_script(data.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace attnbench
