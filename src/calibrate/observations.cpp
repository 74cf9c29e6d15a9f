// Roles and names of layers, and forwards that are drawn from a scenario's seed.
#include "calibrate/observations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "calibrate/latents.h"
#include "core/backend_name.h"
#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/files/scale_text.h"
#include "inputs/mla_inputs.h"
#include "inputs/mm_inputs.h"
#include "inputs/random.h"

namespace attnbench {
namespace {

constexpr std::int64_t kMostLayers = 100'000;

/// "a.{}.b:3" -> a.0.b, a.1.b, a.2.b.
void expand_template(const std::string& text, std::size_t hole, std::vector<std::string>& layers) {
  const std::size_t colon = text.rfind(':');
  std::int64_t count = 0;
  if (colon != std::string::npos && colon > hole) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, count);
    if (error != std::errc{} || stop != end) count = 0;
  }
  if (count < 1 || count > kMostLayers) {
    fail(ErrorKind::kUsage,
         "--layers: expected a template with its number of layers, as in 'blocks.{{}}.attn:32', "
         "found '{}'",
         text);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    layers.push_back(text.substr(0, hole) + std::to_string(i) +
                     text.substr(hole + 2, colon - hole - 2));
  }
}

/// Without the padding rows behind them.
Tensor first_rows(const Tensor& tensor, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor.shape();
  shape[0] = count;
  Tensor result(tensor.dtype(), shape);
  if (!result.empty()) std::memcpy(result.bytes(), tensor.bytes(), result.size_bytes());
  return result;
}

class ScenarioObservations final : public Observations {
 public:
  ScenarioObservations(std::vector<Problem> cases, ScaleFormat format,
                       std::vector<std::string> layers, std::int64_t num_forwards,
                       const FindRules& find_rules)
      : cases_(std::move(cases)), layers_(std::move(layers)) {
    sort_layers();
    num_forwards_ = std::max(num_forwards, static_cast<std::int64_t>(cases_.size()));
    const AttentionSpec& first = cases_.front().attention;
    for (const Problem& problem : cases_) {
      const AttentionSpec& a = problem.attention;
      if (a.type == AttentionType::kOp) {
        fail(ErrorKind::kConfig,
             "attention.type: scales are calibrated from queries, keys and values; expected "
             "another type than {}",
             to_string(a.type));
      }
      if (a.type == AttentionType::kMla) check_latent_format("attention.type mla", format);
      if (a.type != first.type || entry_size(problem) != entry_size(cases_.front()) ||
          a.num_heads != first.num_heads || a.num_kv_heads != first.num_kv_heads ||
          a.head_size != first.head_size || a.v_head_size != first.v_head_size) {
        fail(ErrorKind::kShape, "case {}: expected the heads of case {}", problem.case_name,
             cases_.front().case_name);
      }
      rules_.push_back(rules_of(problem, find_rules));
    }
  }

  const std::vector<std::string>& layers() const override { return layers_; }
  std::int64_t count(std::size_t) const override { return num_forwards_; }

  bool has_latents(std::size_t) const override {
    return cases_.front().attention.type == AttentionType::kMla;
  }

  Observation read(std::size_t sorted, std::int64_t index) override {
    const std::size_t layer = drawn_as_[sorted];
    const auto num_cases = static_cast<std::int64_t>(cases_.size());
    const auto place = static_cast<std::size_t>(index % num_cases);
    const Problem& problem = cases_[place];
    const bool is_case = layer == 0 && index >= num_forwards_ - num_cases;
    Observation observation;
    observation.where = problem.scenario + "/" + problem.case_name;
    if (has_latents(sorted)) {
      draw_latents(problem, is_case ? std::nullopt : std::optional(layer), index, observation);
      return observation;
    }
    AttentionInputs inputs = is_case ? make_inputs(problem)
                                     : make_mm_observation(problem, layer, static_cast<int>(index));
    observation.tensors = {first_rows(inputs.query, inputs.num_tokens()), std::move(inputs.key),
                           std::move(inputs.value)};
    observation.problem = problem;
    observation.rules = rules_[place];
    observation.sinks = std::move(inputs.sinks);
    observation.alibi_slopes = std::move(inputs.alibi_slopes);
    return observation;
  }

 private:
  /// Of latents, else nothing.
  static std::int64_t entry_size(const Problem& problem) {
    const bool is_mla = problem.attention.type == AttentionType::kMla;
    return is_mla ? problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim : 0;
  }

  /// Those of the case itself, or of `layer` in another forward.
  static void draw_latents(const Problem& problem, std::optional<std::size_t> layer,
                           std::int64_t index, Observation& observation) {
    Problem drawn = problem;
    if (layer) {
      drawn.inputs.seed = observation_seed(problem.inputs.seed, *layer, static_cast<int>(index));
    }
    MlaInputs inputs = make_mla_inputs(drawn);
    LatentTensors tensors;
    tensors.query = first_rows(inputs.query, inputs.num_tokens());
    tensors.kv_c = std::move(inputs.kv_c);
    tensors.k_pe = std::move(inputs.k_pe);
    tensors.w_uk = std::move(inputs.w_uk);
    tensors.w_uv = std::move(inputs.w_uv);
    if (problem.mla.sparse_topk) tensors.topk_indices = std::move(inputs.topk_indices);
    set_latents(observation.where, std::move(tensors), 0, observation);
    observation.problem = problem;
  }

  /// Those of its backend, where it names one.
  static KernelRules rules_of(const Problem& problem, const FindRules& find_rules) {
    if (problem.backends.size() != 1) return {};
    const BackendName name = parse_backend_name(problem.backends.front());
    if (const auto known = find_rules(std::string(name.backend))) return *known;
    fail(ErrorKind::kValue, "case {}: backends: unknown backend '{}'", problem.case_name,
         shown(problem.backends.front()));
  }

  /// In natural order; what is drawn for a layer goes by its place in the scenario, as in a run.
  void sort_layers() {
    drawn_as_.resize(layers_.size());
    std::iota(drawn_as_.begin(), drawn_as_.end(), std::size_t{0});
    std::sort(drawn_as_.begin(), drawn_as_.end(),
              [&](std::size_t a, std::size_t b) { return natural_less(layers_[a], layers_[b]); });
    std::vector<std::string> names;
    for (const std::size_t layer : drawn_as_) names.push_back(layers_[layer]);
    layers_ = std::move(names);
  }

  std::vector<Problem> cases_;
  std::vector<KernelRules> rules_;  // of the cases
  std::vector<std::string> layers_;
  std::vector<std::size_t> drawn_as_;  // place in the scenario, by layer
  std::int64_t num_forwards_ = 1;
};

}  // namespace

std::vector<Role> scaled_roles(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kVllmMm:
    case ScaleFormat::kKvCache:
      return {kQueryRole, kKeyRole, kValueRole};
    case ScaleFormat::kKvCacheLegacy:
      return {kKeyRole, kValueRole};
    case ScaleFormat::kInt8Value:
      return {kValueRole};
  }
  return {};
}

std::vector<std::string> expand_layers(const std::vector<std::string>& names) {
  std::vector<std::string> layers;
  for (const std::string& name : names) {
    const std::size_t hole = name.find("{}");
    if (hole == std::string::npos) {
      layers.push_back(name);
    } else {
      expand_template(name, hole, layers);
    }
  }
  std::sort(layers.begin(), layers.end(),
            [](const auto& a, const auto& b) { return natural_less(a, b); });
  const auto twice = std::adjacent_find(layers.begin(), layers.end());
  if (twice != layers.end()) {
    fail(ErrorKind::kValue, "--layers: layer '{}' is given twice", *twice);
  }
  return layers;
}

void check_latent_format(const std::string& where, ScaleFormat format) {
  if (format == ScaleFormat::kKvCache || format == ScaleFormat::kKvCacheLegacy) return;
  fail(ErrorKind::kConfig,
       "{}: expected --format kv-cache or kv-cache-legacy for latents, found {}", where,
       to_string(format));
}

std::unique_ptr<Observations> scenario_observations(std::vector<Problem> cases, ScaleFormat format,
                                                    std::vector<std::string> layers,
                                                    std::int64_t num_forwards,
                                                    const FindRules& find_rules) {
  return std::make_unique<ScenarioObservations>(std::move(cases), format, std::move(layers),
                                                num_forwards, find_rules);
}

}  // namespace attnbench
