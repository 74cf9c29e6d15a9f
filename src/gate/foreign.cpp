#include "gate/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/parsing.h"
#include "core/problem/fields.h"

namespace attnbench {
namespace {

using SortedJson = nlohmann::json;

constexpr std::string_view kNothing = "nothing";

class Comparison {
 public:
  Comparison(const ResultFile& baseline, const ResultFile& results)
      : baseline_(baseline), results_(results) {}

  std::vector<std::string> reasons() {
    const bool on_cpu = runs_on("cpu");
    if (on_cpu) compare_cpu();
    if (runs_on("cuda")) compare_device();
    compare_fingerprint(on_cpu);
    return std::move(reasons_);
  }

 private:
  /// Whether both files have results of such a device; devices themselves are compared by case.
  bool runs_on(std::string_view device) const {
    const auto on_device = [&](const Result& result) { return result.device.starts_with(device); };
    return std::any_of(baseline_.results.begin(), baseline_.results.end(), on_device) &&
           std::any_of(results_.results.begin(), results_.results.end(), on_device);
  }

  void compare(std::string_view what, std::string_view before, std::string_view after) {
    if (before == after) return;
    reasons_.push_back(fmt::format("{}: {} in the baseline, {} in the results", what,
                                   before.empty() ? kNothing : before,
                                   after.empty() ? kNothing : after));
  }

  void compare_cpu() {
    const CpuInfo& before = baseline_.run.environment.cpu;
    const CpuInfo& after = results_.run.environment.cpu;
    compare("CPU", before.model, after.model);
    compare("CPU cores", std::to_string(before.cores), std::to_string(after.cores));
    compare("CPU features", before.features, after.features);
  }

  static std::string device_field(const ResultFile& file, const char* key) {
    const auto found = file.device.find(key);
    return found == file.device.end() ? "" : found->second;
  }
  void compare_device() {
    for (const auto& [what, key] : {std::pair{"GPU", "name"}, std::pair{"compute capability", "sm"},
                                    std::pair{"multiprocessors", "num_sms"}}) {
      compare(what, device_field(baseline_, key), device_field(results_, key));
    }
    const auto major = [](const std::string& version) {
      return version.substr(0, version.find('.'));
    };
    compare("driver major", major(device_field(baseline_, "driver")),
            major(device_field(results_, "driver")));
    const bool known = baseline_.sm_mhz_max > 0 && results_.sm_mhz_max > 0;
    if (known && (baseline_.sm_mhz_max < results_.sm_mhz_min ||
                  results_.sm_mhz_max < baseline_.sm_mhz_min)) {
      const auto range = [](const ResultFile& file) {
        return fmt::format("{:.0f}..{:.0f} MHz", file.sm_mhz_min, file.sm_mhz_max);
      };
      compare("SM clocks", range(baseline_), range(results_));
    }
  }

  /// The fingerprint says that something differs, the fields what. On a GPU a newer driver of the
  /// same major and another host compiler are no reason to refuse.
  void compare_fingerprint(bool on_cpu) {
    const Environment& before = baseline_.run.environment;
    const Environment& after = results_.run.environment;
    if (before.fingerprint == after.fingerprint || !reasons_.empty()) return;
    if (on_cpu) compare("compiler", before.compiler, after.compiler);
    const bool harmless =
        !on_cpu && (before.compiler != after.compiler ||
                    device_field(baseline_, "driver") != device_field(results_, "driver"));
    if (reasons_.empty() && !harmless) {
      compare("fingerprint", before.fingerprint, after.fingerprint);
    }
  }

  const ResultFile& baseline_;
  const ResultFile& results_;
  std::vector<std::string> reasons_;
};

SortedJson::json_pointer pointer_to(std::string_view key) {
  std::string path(1, '/');
  path += key;
  std::replace(path.begin(), path.end(), '.', '/');
  return SortedJson::json_pointer(path);
}

/// What the problem says under one of kScaleFileKeys or kInputFileKey; empty when it names no file.
std::string file_path(const SortedJson& problem, std::string_view key) {
  const SortedJson::json_pointer pointer = pointer_to(key);
  if (!problem.contains(pointer) || !problem.at(pointer).is_string()) return "";
  return problem.at(pointer).get<std::string>();
}

/// Scales of a file are its accuracy, which is what is compared, and its name is nobody's concern;
/// nor is that of a file that the case writes.
void hide_scales(SortedJson& problem) {
  constexpr std::string_view kSavePath = "mm_encoder.fp8_scale_save_path";
  for (const std::string_view key : kScaleFileKeys) {
    if (!file_path(problem, key).empty()) problem[pointer_to(key)] = "a file";
  }
  if (!file_path(problem, kSavePath).empty()) problem[pointer_to(kSavePath)] = "a file";
  if (file_path(problem, "kv_cache.scale_file").empty()) return;
  for (const char* key : {"k_scale", "v_scale", "q_scale"}) problem["kv_cache"].erase(key);
}

std::string hash_of(const Result& result, std::string_view key) {
  const auto hash = result.file_hashes.find(std::string(key));
  return hash == result.file_hashes.end() ? "" : hash->second;
}

/// A problem without what changes neither the work that is timed nor what is compared of it.
SortedJson work_of(const Result& result, bool inputs_by_hash) {
  SortedJson problem = parse_json<SortedJson>(result.problem_json);
  if (!problem.is_object()) return nullptr;
  for (const char* key : {"description", "backends"}) problem.erase(key);
  hide_scales(problem);
  if (inputs_by_hash) {
    problem[pointer_to(kInputFileKey)] = "SHA-256 " + hash_of(result, kInputFileKey);
  }
  const auto timing = problem.find("timing");
  if (timing != problem.end() && timing->is_object()) {
    for (const char* key :
         {"samples", "min_time_ms", "max_noise", "timeout_s", "order", "rounds"}) {
      timing->erase(key);
    }
  }
  return problem;
}

/// Keys that a baseline's version did not know yet: it ran with what is their default now. So a key
/// that is missing there is no difference while the results have its default, and one otherwise.
void add_defaults(SortedJson& problem, const SortedJson& other) {
  static const SortedJson defaults = parse_json<SortedJson>(problem_to_json(Problem{}));
  for (const Field& field : problem_fields()) {
    const SortedJson::json_pointer key = pointer_to(field.key);
    if (problem.contains(key) || !other.contains(key)) continue;
    const SortedJson::json_pointer section = key.parent_pointer();
    if (problem.contains(section) && !problem.at(section).is_object()) continue;
    problem[key] = defaults.at(key);
  }
}

/// The probe had needles before there was a key of them.
void add_needles(SortedJson& problem) {
  const auto inputs = problem.find("inputs");
  if (inputs == problem.end() || !inputs->is_object() || inputs->contains("needles")) return;
  if (inputs->value("distribution", SortedJson()) == "probe") (*inputs)["needles"] = true;
}

/// How a case is judged and rested was not always written down: what a baseline does not say of
/// that is taken from the results. These have to say it: a gap there could hide what was left out.
void fill_gaps(SortedJson& problem, const SortedJson& other) {
  const auto validation = other.find("validation");
  if (validation != other.end() && validation->is_object()) {
    SortedJson all = *validation;
    if (const auto own = problem.find("validation"); own != problem.end()) {
      if (!own->is_object()) return;  // a difference, and to be shown as one
      all.update(*own);
    }
    problem["validation"] = std::move(all);
  }
  const SortedJson::json_pointer pace("/timing/pace");
  const bool has_timing = problem.contains("timing") && problem["timing"].is_object();
  if (has_timing && other.contains(pace) && !problem.contains(pace)) {
    problem[pace] = other.at(pace);
  }
}

std::string shorten(const std::string& text) {
  constexpr std::size_t kMax = 40;
  return text.size() <= kMax ? text : text.substr(0, kMax) + "...";
}

/// "attention.head_size: 64 in the baseline, 128 in the results"; empty when nothing differs.
std::string first_difference(const SortedJson& before, const SortedJson& after) {
  const SortedJson patch = SortedJson::diff(before, after);
  if (patch.empty()) return "";
  const std::string path = patch.front().at("path").get<std::string>();
  const SortedJson::json_pointer pointer(path);
  const auto value = [&](const SortedJson& json) {
    return json.contains(pointer) ? shorten(json.at(pointer).dump()) : std::string(kNothing);
  };
  std::string key = path.empty() ? "problem" : path.substr(1);
  std::replace(key.begin(), key.end(), '/', '.');
  return fmt::format("{}: {} in the baseline, {} in the results", key, value(before), value(after));
}

std::string kind_of(const std::string& device) { return device.substr(0, device.find(':')); }

/// The results of one id in both files.
template <typename Visit>
void for_each_pair(const ResultFile& baseline, const ResultFile& results, const Visit& visit) {
  std::map<std::string_view, const Result*> by_id;
  for (const Result& result : baseline.results) by_id[result.id] = &result;
  for (const Result& result : results.results) {
    const auto old = by_id.find(result.id);
    if (old != by_id.end()) visit(*old->second, result);
  }
}

std::string case_difference(const Result& before, const Result& after) {
  if (kind_of(before.device) != kind_of(after.device)) {
    return fmt::format("device: {} in the baseline, {} in the results", before.device,
                       after.device);
  }
  return problem_difference(before, after);
}

}  // namespace

std::string problem_difference(const Result& before, const Result& after) {
  // Results of older versions know only the path.
  const bool by_hash =
      !hash_of(before, kInputFileKey).empty() && !hash_of(after, kInputFileKey).empty();
  if (!by_hash && before.problem_json == after.problem_json) return "";
  SortedJson old_work = work_of(before, by_hash);
  SortedJson new_work = work_of(after, by_hash);
  if (old_work.is_null()) return "";
  if (new_work.is_null()) return "problem is missing in the results";
  fill_gaps(old_work, new_work);
  if (new_work.contains(pointer_to("inputs.needles"))) add_needles(old_work);
  add_defaults(old_work, new_work);
  return first_difference(old_work, new_work);
}

std::string scale_difference(const Result& before, const Result& after) {
  if (before.problem_json == after.problem_json && before.file_hashes == after.file_hashes) {
    return "";
  }
  const SortedJson old_problem = parse_json<SortedJson>(before.problem_json);
  const SortedJson new_problem = parse_json<SortedJson>(after.problem_json);
  for (const std::string_view key : kScaleFileKeys) {
    const std::string old_path = file_path(old_problem, key);
    const std::string new_path = file_path(new_problem, key);
    if (old_path.empty() || new_path.empty()) continue;
    const std::string old_hash = hash_of(before, key);
    const std::string new_hash = hash_of(after, key);
    const bool known = !old_hash.empty() && !new_hash.empty();
    const bool same = known ? old_hash == new_hash : old_path == new_path;
    if (same) continue;
    return old_path == new_path
               ? fmt::format("{}: '{}' holds other scales in the results", key, old_path)
               : fmt::format("{}: '{}' in the baseline, '{}' in the results", key, old_path,
                             new_path);
  }
  return "";
}

std::vector<std::string> scale_differences(const ResultFile& baseline, const ResultFile& results) {
  std::map<std::string, int> counts;
  for_each_pair(baseline, results, [&](const Result& before, const Result& after) {
    const std::string difference = scale_difference(before, after);
    if (!difference.empty()) ++counts[difference];
  });
  std::vector<std::string> sentences;
  for (const auto& [difference, count] : counts) {
    sentences.push_back(fmt::format("{} ({} case{})", difference, count, count == 1 ? "" : "s"));
  }
  return sentences;
}

std::vector<std::string> foreign_reasons(const ResultFile& baseline, const ResultFile& results) {
  std::vector<std::string> reasons = Comparison(baseline, results).reasons();
  for_each_pair(baseline, results, [&](const Result& before, const Result& after) {
    const std::string difference = case_difference(before, after);
    if (!difference.empty()) reasons.push_back(after.id + ": " + difference);
  });
  return reasons;
}

}  // namespace attnbench
