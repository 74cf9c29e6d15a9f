// What `support` says and what a run does, held against each other at the ends of every range that
// the schema has: a case that no backend refuses runs, on the CPU and as a plan for a GPU, and one
// that cannot run is refused before it is started.
//
// Each key is set to its least and its largest value, and to every word that it has, on small cases
// of each type. Values are what the schema says, so a new key is tested without a line here.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/cases/case.h"
#include "core/error.h"
#include "metadata/mla/prefill.h"
#include "ops/cuda/launcher.h"
#include "ops/cuda/recording_ops.h"
#include "run_case.h"
#include "scenario/scenario.h"

namespace attnbench::matrix {
namespace {

using Json = nlohmann::json;
using Settings = std::vector<Setting>;

constexpr const char* kSmallLatents =
    "mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}\n";

/// Small cases, one of each family and of each combination with limits of its own.
const std::map<std::string, std::string> kBases = {
    {"decoder",
     "attention: {num_heads: 4, num_kv_heads: 2, head_size: 64}\n"
     "batch: 2q1s40_q5s20\n"},
    {"decodes",
     "attention: {num_heads: 4, num_kv_heads: 2, head_size: 64}\n"
     "batch: 3q1s600\n"},
    {"ranks",
     "attention: {num_heads: 8, num_kv_heads: 1, head_size: 16}\n"
     "dcp: {world_size: 2}\nbatch: 2q1s40\n"},
    {"encoder", "attention: {type: encoder, num_heads: 4, head_size: 64}\nbatch: q20_q7\n"},
    {"cross",
     "attention: {type: encoder_decoder, num_heads: 4, head_size: 64}\n"
     "batch: q1s40_q5s20\n"},
    {"mla",
     "attention: {type: mla, num_heads: 4}\nkv_cache: {block_size: 64}\n"
     "batch: 2q1s70_q5s20\n"},
    {"mla ranks",
     "attention: {type: mla, num_heads: 8}\n"
     "mla: {kv_lora_rank: 64, qk_nope_head_dim: 16, v_head_dim: 16}\n"
     "dcp: {world_size: 2}\nkv_cache: {block_size: 64}\nbatch: 2q1s70\n"},
    {"sparse",
     "attention: {type: mla, num_heads: 4}\nkv_cache: {block_size: 64}\n"
     "mla: {sparse_topk: 128}\nbatch: 2q1s70\n"},
    {"vision", "attention: {type: mm_encoder, num_heads: 4, head_size: 64}\nbatch: q20_q7\n"},
};

/// What an operation needs besides its name; the others work on heads of 64.
const std::map<std::string, std::string> kOperationNeeds = {
    {"gather", kSmallLatents},
    {"dcp_correct", "dcp: {world_size: 2}\n"},
    {"index_topk", "mla: {sparse_topk: 128}\n"},
};
/// Operations that have a form for latents beside that for heads.
const std::set<std::string> kAlsoOfLatents = {"reshape_and_cache", "rope", "rope_and_cache",
                                              "quantize"};

/// The bases, and one for each operation that the schema has.
std::map<std::string, std::string> all_bases(const Json& schema) {
  std::map<std::string, std::string> bases = kBases;
  const Json& op = schema.at("properties").at("op").at("properties").at("name").at("enum");
  for (const Json& word : op) {
    if (word.is_null()) continue;
    const std::string name = word.get<std::string>();
    const auto needs = kOperationNeeds.find(name);
    const std::string more = needs == kOperationNeeds.end() ? "" : needs->second;
    const auto add = [&](const std::string& base, const char* heads, const std::string& rest) {
      bases[base] = fmt::format(
          "attention: {{type: op, num_heads: 4{}}}\nop: {{name: {}}}\nbatch: 2q1s70_q5s33\n{}",
          heads, name, rest);
    };
    constexpr const char* kHeads = ", num_kv_heads: 2, head_size: 64";
    add("op " + name, more == kSmallLatents ? "" : kHeads, more);
    if (kAlsoOfLatents.contains(name)) add("op " + name + " of latents", "", kSmallLatents);
  }
  return bases;
}

/// Where a key stands in the way of its own extremes: what has to go with it.
const std::map<std::string, Settings> kCompanions = {
    {"dcp.world_size", {{"attention.num_heads", "1024"}}},
    {"kv_cache.k_scale", {{"kv_cache.dtype", "fp8"}}},
    {"kv_cache.v_scale", {{"kv_cache.dtype", "fp8"}}},
    {"kv_cache.q_scale", {{"kv_cache.dtype", "fp8"}}},
    {"kv_cache.q_scale_constant",
     {{"kv_cache.dtype", "fp8"}, {"kv_cache.calculate_kv_scales", "true"}}},
    {"cascade.mode", {{"cascade.common_prefix_len", "16"}, {"batch", "3q1s40"}}},
};

/// Keys whose extremes leave nothing of the scores or values: there only an error is a limit.
const std::set<std::string> kValueKeys = {"attention.scale",           "inputs.std",
                                          "attention.logits_soft_cap", "output_quant.scale",
                                          "kv_cache.k_scale",          "kv_cache.v_scale",
                                          "kv_cache.q_scale",          "kv_cache.q_scale_constant",
                                          "kv_cache.k_scale_constant", "kv_cache.v_scale_constant"};

/// Sections that say how a case is judged and timed, not what it is.
const std::set<std::string> kNoProblem = {"validation", "timing", "sweep", "batch"};

void add_values(const Json& json, std::vector<std::string>& values) {
  if (json.contains("anyOf")) {
    for (const Json& alternative : json.at("anyOf")) add_values(alternative, values);
    return;
  }
  if (json.contains("enum")) {
    for (const Json& word : json.at("enum")) values.push_back(word.dump());
    return;
  }
  const Json type = json.value("type", Json());
  const bool is_integer = type == "integer";
  if (type == "boolean") values.insert(values.end(), {"true", "false"});
  if (json.contains("minimum")) values.push_back(json.at("minimum").dump());
  if (json.contains("maximum")) values.push_back(json.at("maximum").dump());
  if (json.contains("exclusiveMinimum") && !is_integer) {
    values.insert(values.end(), {"1e-30", "1e30"});
  }
}

void collect(const Json& json, const std::string& key,
             std::map<std::string, std::vector<std::string>>& keys) {
  if (!json.contains("properties")) {
    std::vector<std::string> values;
    add_values(json, values);
    if (!values.empty()) keys[key] = std::move(values);
    return;
  }
  for (const auto& [name, child] : json.at("properties").items()) {
    if (key.empty() && kNoProblem.contains(name)) continue;
    collect(child, key.empty() ? name : key + "." + name, keys);
  }
}

/// Elements of the largest tensors.
double largest(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  const MlaSpec& mla = problem.mla;
  const double wide = std::max(a.head_size, a.v_head_size);
  const auto tokens =
      static_cast<double>(std::max(problem.num_tokens(), problem.op.tokens.value_or(0)));
  const double heads = std::max(a.num_heads, mla.q_pad_num_heads.value_or(0));
  const double splits = std::max(a.num_splits.value_or(1), problem.dcp.world_size);
  const double pages = static_cast<double>(problem.kv_cache.num_blocks) *
                       problem.kv_cache.block_size * problem.dcp.world_size * a.num_kv_heads *
                       problem.kv_cache.layers.value_or(1);
  double most = std::max({tokens * heads * wide * splits, pages * wide,
                          static_cast<double>(problem.num_keys()) * a.num_kv_heads * wide});
  most = std::max(most, tokens * static_cast<double>(mla.sparse_topk.value_or(0)));
  if (a.type != AttentionType::kMla && !problem.op.mla) return most;
  const double latent = mla.kv_lora_rank + mla.qk_rope_head_dim;
  most = std::max({most, latent * heads * (mla.qk_nope_head_dim + mla.v_head_dim), pages * latent,
                   tokens * heads * latent * splits,
                   static_cast<double>(mla_workspace_tokens(problem)) * latent});
  return std::max(most, tokens * static_cast<double>(mla.sparse_topk.value_or(0)) * latent);
}

/// The CPU judges what is small; what is larger than any GPU is not even planned.
constexpr double kMostJudged = 4e7;
constexpr double kMostPlanned = 1e9;

/// What planning the case on a GPU of SM 9.0 ends with, empty = a plan. Not enough memory is no
/// limit of a backend.
std::string plan_error(const Problem& problem, const Backend& backend, const cuda::Target& target) {
  Problem planned = problem;
  planned.inputs.shapes_only = true;
  std::vector<KernelSpec> specs;
  try {
    const std::unique_ptr<Ops> ops = make_recording_ops(target, specs);
    const std::unique_ptr<Case> the_case = make_case(planned, {});
    const std::unique_ptr<Pipeline> pipeline = the_case->start(backend)->prepare(*ops);
    for (const Step& step : pipeline->steps()) step.run();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kCapacity ? "" : error.full_message();
  } catch (const std::bad_alloc&) {
    return "";
  }
  return "";
}

struct Counts {
  int cases = 0;
  int run = 0;
  int planned = 0;
  int refused = 0;
  int rejected = 0;
};

/// `judged`: the result must be right too, where the numbers of the key are none that scores cannot
/// have.
void check(const std::string& name, const Problem& problem, bool judged, Ops& ops, Counts& counts) {
  const cuda::Target target = cuda::target_of_sm(90);
  if (largest(problem) > kMostPlanned) return;
  for (const Backend* backend : all_backends()) {
    if (!backend->is_default_for(problem.attention.type)) continue;
    const std::string id = fmt::format("{} on {}", name, backend->name());
    DeviceFacts gpu;
    gpu.is_cuda = true;
    if (!backend->refusals(problem, gpu).empty()) {
      ++counts.refused;
    } else if (cuda_lacks(problem, target).empty()) {
      ++counts.planned;
      const std::string error = plan_error(problem, *backend, target);
      CHECK_MESSAGE(error.empty(), id, " is supported on a GPU, and its plan ends with ", error);
    }
    if (largest(problem) > kMostJudged) continue;
    ++counts.run;
    const CaseResult result = run_case(problem, *backend, ops);
    // Too little memory is no limit of a backend.
    const std::string text = result.text();
    const bool is_wrong = result.outcome == Outcome::kWrong && !text.starts_with("E-CAPACITY") &&
                          (judged || text.starts_with("E-"));
    CHECK_MESSAGE(!is_wrong, id, " is supported, and ", text);
  }
}

TEST_CASE("a case at the ends of the schema runs where no backend refuses it") {
  std::map<std::string, std::vector<std::string>> keys;
  const Json schema = Json::parse(scenario_schema_text());
  collect(schema, "", keys);
  keys.erase("op.name");  // a base for each
  REQUIRE(keys.size() > 60);
  const std::unique_ptr<Ops> ops = make_cpu_ops(2);
  const char* only = std::getenv("ATTNBENCH_LIMITS");
  Counts counts;
  for (const auto& [base, text] : all_bases(schema)) {
    for (const auto& [key, values] : keys) {
      for (const std::string& value : values) {
        const std::string name = fmt::format("{}, {} = {}", base, key, value);
        if (only != nullptr && name.find(only) == std::string::npos) continue;
        ++counts.cases;
        Settings settings{{key, value}};
        if (const auto with = kCompanions.find(key); with != kCompanions.end()) {
          settings.insert(settings.end(), with->second.begin(), with->second.end());
        }
        std::optional<Problem> problem;
        try {
          problem = make_problem("name: t\n" + text, settings);
        } catch (const Error&) {
          ++counts.rejected;  // before any backend is asked
          continue;
        }
        check(name, *problem, !kValueKeys.contains(key), *ops, counts);
      }
    }
  }
  MESSAGE(counts.cases, " cases: ", counts.rejected, " rejected; of their backends ",
          counts.refused, " refuse, ", counts.planned, " plan, ", counts.run, " run");
  if (only == nullptr) CHECK(counts.run > 300);
}

}  // namespace
}  // namespace attnbench::matrix
