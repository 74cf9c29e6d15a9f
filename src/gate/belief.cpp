#include "gate/belief.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/parsing.h"
#include "gate/statistics.h"

namespace attnbench {
namespace {

constexpr std::size_t kShown = 5;
/// Files hold doubles to the last digit; sums in another order differ by less than this.
constexpr double kRounding = 1e-6;
/// Shares of a ceiling beyond which a time must be called implausible (metrics/throughput.h), in
/// percent.
constexpr double kBelievedPct = 110;
constexpr double kBelievedColdPct = 105;

bool is_near(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b));
}

bool is_time(double value) { return std::isfinite(value) && value > 0; }
bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

/// Collects sentences that begin with the path of a field.
class Sentences {
 public:
  explicit Sentences(std::string part) : part_(std::move(part)) {}

  template <typename... Values>
  void add(std::string_view field, fmt::format_string<Values...> format, Values&&... values) {
    list_.push_back(fmt::format("{}{}{} {}", part_, part_.empty() ? "" : ".", field,
                                fmt::format(format, std::forward<Values>(values)...)));
  }
  void expect_near(std::string_view field, double found, double expected, std::string_view source) {
    if (!is_near(found, expected)) add(field, "is {:.6g}, but {} {:.6g}", found, source, expected);
  }
  void move_to(std::vector<std::string>& all) {
    std::move(list_.begin(), list_.end(), std::back_inserter(all));
  }

 private:
  std::string part_;
  std::vector<std::string> list_;
};

// ---- Timing.

/// False when the samples are none, so that nothing else can be held against them.
bool check_samples(const Timing& timing, Sentences& say) {
  const std::vector<double>& samples = timing.samples_us;
  if (samples.empty()) {
    say.add("samples_us", "is empty, so that median_us {:.6g} is the median of nothing",
            timing.median_us);
    return false;
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (is_time(samples[i])) continue;
    say.add(fmt::format("samples_us[{}]", i), "is {}, but a time is finite and above 0",
            samples[i]);
    return false;
  }
  return true;
}

void check_summary(const Timing& timing, Sentences& say) {
  Timing expected = timing;
  summarize(expected);
  constexpr std::string_view kGive = "samples_us give";
  say.expect_near("median_us", timing.median_us, expected.median_us, kGive);
  say.expect_near("min_us", timing.min_us, expected.min_us, kGive);
  say.expect_near("q1_us", timing.q1_us, expected.q1_us, kGive);
  say.expect_near("q3_us", timing.q3_us, expected.q3_us, kGive);
  say.expect_near("mean_us", timing.mean_us, expected.mean_us, kGive);
  // Sums of squares in another order lose more digits.
  const double slack = 1e-6 * expected.mean_us;
  if (!(std::abs(timing.stdev_us - expected.stdev_us) <= slack)) {
    say.expect_near("stdev_us", timing.stdev_us, expected.stdev_us, kGive);
  }
  if (!(std::abs(timing.noise - expected.noise) <= kRounding)) {
    say.expect_near("noise", timing.noise, expected.noise, kGive);
  }
}

void check_waits(const Result& result, Sentences& say) {
  const Timing& timing = *result.timing;
  const std::vector<double>& waits = timing.waits_us;
  if (waits.empty()) return;
  if (result.device.starts_with("cuda")) {
    say.add("waits_us", "is there, but nothing measures waits on {}", result.device);
    return;
  }
  const std::vector<double>& samples = timing.samples_us;
  if (waits.size() != samples.size()) {
    say.add("waits_us", "has {} values, but samples_us has {}", waits.size(), samples.size());
    return;
  }
  double sum = 0;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    sum += waits[i];
    if (is_amount(waits[i]) && waits[i] <= samples[i] * (1 + kRounding)) continue;
    say.add(fmt::format("waits_us[{}]", i),
            "is {:.6g}, but must lie between 0 and samples_us[{}] {:.6g}", waits[i], i, samples[i]);
    return;
  }
  if (std::isnan(timing.cpu_wait)) {
    say.add("cpu_wait", "is missing, although there are waits_us");
  } else if ((sum > 0) != (timing.cpu_wait > 0)) {
    say.add("cpu_wait", "is {:.6g}, but waits_us add up to {:.6g} us", timing.cpu_wait, sum);
  }
}

void check_clocks(const Timing& timing, Sentences& say) {
  const std::vector<double>& clocks = timing.samples_sm_mhz;
  if (clocks.empty()) {
    if (std::isfinite(timing.cycles)) {
      say.add("cycles", "is {:.6g}, but there are no samples_sm_mhz to compute it from",
              timing.cycles);
    }
    return;
  }
  if (clocks.size() != timing.samples_us.size()) {
    say.add("samples_sm_mhz", "has {} values, but samples_us has {}", clocks.size(),
            timing.samples_us.size());
    return;
  }
  for (std::size_t i = 0; i < clocks.size(); ++i) {
    if (is_time(clocks[i])) continue;
    say.add(fmt::format("samples_sm_mhz[{}]", i), "is {}, but a clock is finite and above 0",
            clocks[i]);
    return;
  }
  Timing expected = timing;
  summarize(expected);
  // A thousandth: whoever wrote it may have had clocks of more digits.
  if (!std::isfinite(timing.cycles)) {
    say.add("cycles", "is missing, although there are samples_sm_mhz");
  } else if (std::abs(timing.cycles - expected.cycles) > 1e-3 * expected.cycles) {
    say.add("cycles", "is {:.6g}, but samples_us and samples_sm_mhz give {:.6g}", timing.cycles,
            expected.cycles);
  }
}

void check_sample_checks(const Result& result, Sentences& say) {
  const Timing& timing = *result.timing;
  for (std::size_t i = 0; i < timing.checked_samples.size(); ++i) {
    const SampleCheck& check = timing.checked_samples[i];
    const std::string field = fmt::format("checked_samples[{}]", i);
    const bool exists =
        check.sample >= 0 && check.sample < static_cast<std::int64_t>(timing.samples_us.size());
    if (!exists) {
      say.add(field + ".sample", "is {}, but there are {} samples", check.sample,
              timing.samples_us.size());
    }
    // Operations are not judged by rows.
    const bool by_rows = !result.error || std::isfinite(result.error->row_limit) ||
                         std::isfinite(check.row_error) || std::isfinite(check.row_limit);
    if (by_rows && result.status == Status::kPassed && !(check.row_error <= check.row_limit)) {
      say.add(field + ".row_error", "is {:.6g}, above row_limit {:.6g}, but the result passed",
              check.row_error, check.row_limit);
    }
  }
}

/// How it was timed beside how its case says that it is timed. What the device cannot do is said to
/// be less than that, never more: caches that were not proven cold are "warm", and nothing is
/// launched as a graph on a CPU.
void check_modes(const Result& result, Sentences& say) {
  const auto problem = parse_json<nlohmann::json>(result.problem_json);
  const auto given = [&](const char* key) -> std::string {
    const nlohmann::json::json_pointer place(std::string("/timing/") + key);
    const bool is_text =
        problem.is_object() && problem.contains(place) && problem.at(place).is_string();
    return is_text ? problem.at(place).get<std::string>() : "";
  };
  const Timing& timing = *result.timing;
  const auto expect = [&](const char* key, const std::string& found, bool may_be_less) {
    const std::string expected = given(key);
    if (found.empty() || expected.empty() || found == expected || may_be_less) return;
    say.add(key, "is '{}', but problem.timing.{} is '{}'", found, key, expected);
  };
  expect("mode", timing.mode, timing.mode == "stream" && !result.device.starts_with("cuda"));
  expect("l2", timing.l2, timing.l2 == "warm");
}

void check_timing(const Result& result, std::vector<std::string>& all) {
  if (!result.timing) return;
  Sentences say("timing");
  const Timing& timing = *result.timing;
  if (check_samples(timing, say)) {
    check_summary(timing, say);
    check_waits(result, say);
    check_clocks(timing, say);
  }
  check_sample_checks(result, say);
  check_modes(result, say);
  if (timing.launch_overhead_us < 0) {
    say.add("launch_overhead_us", "is {:.6g}", timing.launch_overhead_us);
  }
  say.move_to(all);
}

// ---- Throughput.

/// Work over the time that the result has.
void check_rates(const Throughput& rate, double median_us, Sentences& say) {
  const std::string work = fmt::format("over {:.6g} us is", median_us);
  const auto expect = [&](std::string_view field, double found, std::string_view of, double amount,
                          double unit) {
    say.expect_near(field, found, amount / median_us * unit, fmt::format("{} {}", of, work));
  };
  expect("tflops", rate.tflops, "flops", rate.flops, 1e-6);
  expect("gbps", rate.gbps, "bytes", rate.bytes, 1e-3);
  if (!(rate.ceiling_tflops > 0) || !(rate.ceiling_gbps > 0)) return;
  const double compute_us = rate.flops / rate.ceiling_tflops * 1e-6;
  const double memory_us = rate.bytes / rate.ceiling_gbps * 1e-3;
  say.expect_near("roofline_pct", rate.roofline_pct,
                  100 * std::max(compute_us, memory_us) / median_us,
                  fmt::format("the ceilings {}", work));
  const bool is_tie = is_near(compute_us, memory_us);
  const std::string_view bound = memory_us >= compute_us ? "memory" : "compute";
  if (!is_tie && rate.bound != bound) {
    say.add("bound", "is '{}', but the ceilings make it '{}'", rate.bound, bound);
  }
}

bool has_f32(const Result& result) {
  const nlohmann::json problem = parse_json<nlohmann::json>(result.problem_json);
  const nlohmann::json::json_pointer dtype("/attention/dtype");
  return problem.is_object() && problem.contains(dtype) && problem.at(dtype) == "float32";
}

/// What certainly beats the device and is not called so. On a GPU the ceilings say as much of a
/// file of an earlier version; a CPU may have faster units than those, and caches.
void check_physics(const Result& result, double l2_bytes, Sentences& say) {
  const Throughput& rate = *result.throughput;
  const bool on_gpu = result.device.starts_with("cuda");
  const bool cold = result.timing->began_cold();
  const auto physics = rate.by_name.find("physics_pct");
  const double believed =
      on_gpu && cold && rate.bound == "memory" ? kBelievedColdPct : kBelievedPct;
  if (physics != rate.by_name.end() && physics->second > believed * (1 + kRounding)) {
    say.add("physics_pct", "is {:.4g}, above {:.0f}, but the status is '{}'", physics->second,
            believed, to_string(result.status));
    return;
  }
  if (!on_gpu || !(rate.roofline_pct > believed)) return;
  const bool by_memory = rate.bound == "memory";
  const double certain = by_memory ? std::max(0.0, 1 - l2_bytes / rate.bytes) : 1;
  if (rate.roofline_pct * certain <= believed) return;
  if (by_memory ? !cold || l2_bytes <= 0 : has_f32(result)) return;
  say.add("roofline_pct", "is {:.4g}, above {:.0f}, but the status is '{}'", rate.roofline_pct,
          believed, to_string(result.status));
}

void check_throughput(const Result& result, double l2_bytes, std::vector<std::string>& all) {
  if (!result.throughput) return;
  Sentences say("throughput");
  if (!result.timing) {
    say.add("tflops", "is {:.6g}, but there is no timing", result.throughput->tflops);
  } else if (is_time(result.timing->median_us)) {
    check_rates(*result.throughput, result.timing->median_us, say);
    if (result.status != Status::kImplausible) check_physics(result, l2_bytes, say);
  }
  say.move_to(all);
}

// ---- Errors.

/// Numbers that no comparison gives.
void check_numbers(const ErrorStats& error, Sentences& say) {
  const std::pair<const char*, double> amounts[] = {
      {"max_abs", error.max_abs},    {"mean_abs", error.mean_abs},   {"rms_rel", error.rms_rel},
      {"nmse", error.nmse},          {"err_ratio", error.err_ratio}, {"row_error", error.row_error},
      {"row_limit", error.row_limit}};
  for (const auto& [name, value] : amounts) {
    if (value < 0 || std::isinf(value))
      say.add(name, "is {}, but it is finite and at least 0", value);
  }
  const std::pair<const char*, std::int64_t> counts[] = {
      {"nan_count", error.nan_count},
      {"inf_count", error.inf_count},
      {"checked_rows", error.checked_rows},
      {"total_rows", error.total_rows},
      {"screened_rows", error.screened_rows},
      {"rows_outside", error.rows_outside},
      {"requests_outside", error.requests_outside}};
  for (const auto& [name, value] : counts) {
    if (value < 0) say.add(name, "is {}, but a count is at least 0", value);
  }
  if (std::abs(error.cosine) > 1 + kRounding) {
    say.add("cosine", "is {:.9g}, but a cosine lies between -1 and 1", error.cosine);
  }
  if (error.matched_pct < 0 || error.matched_pct > 100 * (1 + kRounding)) {
    say.add("matched_pct", "is {:.6g}, but a percentage lies between 0 and 100", error.matched_pct);
  }
  if (std::isfinite(error.rms_rel) && std::isfinite(error.nmse)) {
    say.expect_near("nmse", error.nmse, error.rms_rel * error.rms_rel, "rms_rel squared is");
  }
  if (error.mean_abs > error.max_abs * (1 + kRounding)) {
    say.add("mean_abs", "is {:.6g}, above max_abs {:.6g}", error.mean_abs, error.max_abs);
  }
  if (error.checked_rows > error.total_rows) {
    say.add("checked_rows", "is {}, more than total_rows {}", error.checked_rows, error.total_rows);
  }
  for (const char* name :
       {"saturated_query", "saturated_key", "saturated_value", "saturated_output"}) {
    const auto share = error.by_name.find(name);
    if (share == error.by_name.end() || (share->second >= 0 && share->second <= 1)) continue;
    say.add(name, "is {}, but a share lies between 0 and 1", share->second);
  }
  if (error.screened_rows > error.total_rows) {
    say.add("screened_rows", "is {}, more than total_rows {}", error.screened_rows,
            error.total_rows);
  }
}

/// The number behind `words` in a limit's text, NaN where they are not in it.
double number_behind(const std::string& text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
  return std::strtod(text.c_str() + at + words.size(), nullptr);
}

/// Files from before rows were judged one by one passed by numbers of the whole batch, and name
/// the limits: "|a-r| <= 0.01 + 0.01*|r|, cosine >= 1-1e-05, err_ratio <= 2 or max_abs <= 0.001".
/// A number that such a limit is about must be there: without it nothing was inside.
void check_batch_limit(const ErrorStats& error, Sentences& say) {
  if (!error.limit.starts_with("|a-r| <=")) return;
  if (!(error.matched_pct >= 100 * (1 - 1e-9))) {
    say.add("matched_pct", "is {:.9g}, not 100, but the result passed", error.matched_pct);
  }
  const double ratio = number_behind(error.limit, "err_ratio <= ");
  const double tiny = number_behind(error.limit, "or max_abs <= ");
  const bool is_tiny = error.max_abs <= tiny;
  if (!std::isnan(ratio) && !(error.err_ratio <= ratio) && !is_tiny) {
    say.add("err_ratio", "is {:.6g}, not within its limit {:.6g}, but the result passed",
            error.err_ratio, ratio);
  }
  const double distance = number_behind(error.limit, "cosine >= 1-");
  if (!std::isnan(distance) && !(1 - error.cosine <= distance * (1 + kRounding))) {
    say.add("cosine", "is {:.9g}, not within its limit 1-{:.3g}, but the result passed",
            error.cosine, distance);
  }
}

/// Whether the problem of the result has new tokens. Only one that says how many may say none.
bool has_new_tokens(const Result& result) {
  const auto problem = parse_json<nlohmann::json>(result.problem_json);
  if (!problem.is_object() || !problem.contains("batch")) return true;
  const nlohmann::json& batch = problem.at("batch");
  if (!batch.is_array() || batch.empty()) return true;
  return !std::all_of(batch.begin(), batch.end(), [](const nlohmann::json& request) {
    return request.is_object() && request.contains("query_len") && request.at("query_len") == 0;
  });
}

/// `may_be_empty`: the case has no rows.
void check_passed(const ErrorStats& error, bool may_be_empty, Sentences& say) {
  const bool is_empty = may_be_empty && error.total_rows == 0;
  if (error.checked_rows <= 0 && !is_empty) {
    say.add("checked_rows", "is {} of {} rows, but the result passed", error.checked_rows,
            error.total_rows);
  }
  if (error.rows_outside > 0) {
    say.add("rows_outside", "is {}, but the result passed", error.rows_outside);
  }
  if (error.requests_outside > 0) {
    say.add("requests_outside", "is {}, but the result passed", error.requests_outside);
  }
  const bool has_limit = std::isfinite(error.row_limit);
  if (has_limit != std::isfinite(error.row_error)) {
    say.add("row_error", "is {}, but row_limit is {}: both are numbers, or neither is",
            error.row_error, error.row_limit);
  }
  if (error.row_error > error.row_limit) {
    say.add("row_error", "is {:.6g}, above row_limit {:.6g}, but the result passed",
            error.row_error, error.row_limit);
  }
  if (!has_limit) check_batch_limit(error, say);
}

/// What the numbers of an error are held against.
struct Claim {
  bool passed = false;
  bool may_be_empty = false;
};

void check_error(const ErrorStats& error, const std::string& part, Claim claim,
                 std::vector<std::string>& all) {
  Sentences say(part);
  check_numbers(error, say);
  if (claim.passed) check_passed(error, claim.may_be_empty, say);
  say.move_to(all);
}

/// Every rank of the group once, in the order of the ranks, each judged like the whole.
void check_ranks(const Result& result, Claim claim, std::vector<std::string>& all) {
  for (std::size_t i = 0; i < result.rank_errors.size(); ++i) {
    const RankErrors& of_rank = result.rank_errors[i];
    const std::string part = fmt::format("rank_errors[{}]", i);
    if (of_rank.rank != static_cast<int>(i)) {
      all.push_back(
          fmt::format("{}.rank is {}, but ranks are listed in order from 0", part, of_rank.rank));
    }
    check_error(of_rank.error, part + ".error", claim, all);
    check_error(of_rank.lse_error, part + ".lse_error", claim, all);
  }
}

/// What the scenario allows is in the file, and so is what it cost.
void check_quantization(const Result& result, std::vector<std::string>& all) {
  if (result.status != Status::kPassed || !result.quantization_error) return;
  const auto problem = parse_json<nlohmann::json>(result.problem_json);
  const nlohmann::json::json_pointer place("/validation/max_quantization_error");
  if (!problem.is_object() || !problem.contains(place) || !problem.at(place).is_number()) return;
  const double most = problem.at(place).get<double>();
  const double found = result.quantization_error->rms_rel;
  if (!(found > most * (1 + kRounding))) return;
  all.push_back(
      fmt::format("quantization_error.rms_rel is {:.6g}, above validation.max_quantization_error "
                  "{:.6g}, but the result passed",
                  found, most));
}

void check_errors(const Result& result, std::vector<std::string>& all) {
  const bool passed = result.status == Status::kPassed;
  const bool has_no_rows = result.error && result.error->total_rows == 0;
  const Claim claim{passed, has_no_rows && !has_new_tokens(result)};
  if (passed && !result.error) all.emplace_back("error is missing, but the result passed");
  if (passed && !result.reasons.empty()) {
    all.push_back(fmt::format("reasons has '{}', but the result passed", result.reasons.front()));
  }
  struct Part {
    const char* name;
    const std::optional<ErrorStats>& error;
    bool is_judged;
  };
  const Part parts[] = {{"error", result.error, true},
                        {"lse_error", result.lse_error, true},
                        {"probe_error", result.probe_error, true},
                        {"probe_lse_error", result.probe_lse_error, true},
                        {"quantization_error", result.quantization_error, false}};
  for (const Part& part : parts) {
    const Claim judged{passed && part.is_judged, claim.may_be_empty};
    if (part.error) check_error(*part.error, part.name, judged, all);
  }
  check_ranks(result, claim, all);
  check_quantization(result, all);
}

// ---- The rest.

void check_id(const Result& result, std::vector<std::string>& all) {
  if (result.scenario.empty() && result.case_name.empty() && result.backend.empty()) return;
  const std::string expected =
      fmt::format("{}/{}/{}", result.scenario, result.case_name, result.backend);
  if (result.id == expected) return;
  all.push_back(
      fmt::format("id is '{}', but scenario, case and backend make it '{}'", result.id, expected));
}

void check_floor(const NoiseFloor& floor, std::vector<std::string>& all) {
  const auto check = [&](const std::string& field, double value) {
    if (value >= 0 && value <= kLargestNoiseFloor) return;
    all.push_back(
        fmt::format("{} is {:.4g}, but a noise floor lies between 0 and {:.4g}: with a "
                    "wider one any slowdown would pass",
                    field, value, kLargestNoiseFloor));
  };
  check("noise_floor.all_cases", floor.all_cases);
  for (const auto& [id, gap] : floor.cases) check(fmt::format("noise_floor.cases['{}']", id), gap);
}

double l2_bytes_of(const ResultFile& file) {
  const auto found = file.device.find("l2_bytes");
  return found == file.device.end() ? 0 : std::strtod(found->second.c_str(), nullptr);
}

}  // namespace

std::vector<std::string> contradictions(const Result& result, double l2_bytes) {
  std::vector<std::string> all;
  if (result.status != Status::kError) check_id(result, all);
  check_errors(result, all);
  check_timing(result, all);
  check_throughput(result, l2_bytes, all);
  return all;
}

std::vector<std::string> contradictions(const ResultFile& file) {
  std::vector<std::string> all;
  if (file.run.noise_floor) check_floor(*file.run.noise_floor, all);
  for (const Result& result : file.results) {
    for (const std::string& sentence : contradictions(result, l2_bytes_of(file))) {
      all.push_back(fmt::format("'{}': {}", result.id, sentence));
    }
  }
  return all;
}

void refuse_contradictions(const ResultFile& file) {
  const std::vector<std::string> all = contradictions(file);
  if (all.empty()) return;
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) text += "\n  " + all[i];
  if (all.size() > kShown) text += fmt::format("\n  and {} more", all.size() - kShown);
  fail(ErrorKind::kFormat, "{}: the file contradicts itself and cannot be believed:{}", file.path,
       text);
}

int disbelieve(ResultFile& file) {
  int count = 0;
  for (Result& result : file.results) {
    std::vector<std::string> sentences = contradictions(result, l2_bytes_of(file));
    if (sentences.empty()) continue;
    ++count;
    for (std::string& sentence : sentences) sentence = "cannot be believed: " + sentence;
    result.status = Status::kError;
    result.reasons = std::move(sentences);
    for (auto part : {&Result::error, &Result::lse_error, &Result::quantization_error,
                      &Result::probe_error, &Result::probe_lse_error}) {
      (result.*part).reset();
    }
    result.rank_errors.clear();
    result.timing.reset();
    result.throughput.reset();
  }
  std::vector<std::string> of_floor;
  if (file.run.noise_floor) check_floor(*file.run.noise_floor, of_floor);
  if (!of_floor.empty()) file.run.noise_floor.reset();
  return count;
}

}  // namespace attnbench
