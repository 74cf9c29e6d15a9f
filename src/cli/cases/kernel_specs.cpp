#include "cli/cases/kernel_specs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "bench/cases/case.h"
#include "bench/cases/encoder_case.h"
#include "bench/cases/single_request.h"
#include "core/error.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/stored_kv.h"
#include "measure/cuda_ceilings.h"
#include "measure/sample_clock.h"
#include "ops/cuda/measure/screen.h"
#include "ops/cuda/recording_ops.h"
#include "ops/cuda/sample/sample_kernels.h"
#include "ops/cuda/zone_scan.h"

namespace attnbench {
namespace {

/// What a run of the pair would do on the target.
struct Plan {
  std::vector<KernelSpec> specs;
  std::vector<cuda::AttendDecision> decisions;
  Facts facts;
  std::string refusal;  // why it ends before its last operation; empty where it does not
};

void record(const Problem& problem, const Backend& backend, const cuda::Target& target,
            Plan& plan) {
  Problem planned = problem;
  planned.inputs.shapes_only = true;
  const std::unique_ptr<Ops> ops = make_recording_ops(target, plan.specs, &plan.decisions);
  const std::unique_ptr<Case> the_case = make_case(planned, {});
  const std::unique_ptr<CaseRun> case_run = the_case->start(backend);
  const std::unique_ptr<Pipeline> pipeline = case_run->prepare(*ops);
  plan.facts = pipeline->facts();
  for (const Step& step : pipeline->steps()) step.run();  // records, launches nothing
}

Plan record_until_refused(const Problem& problem, const Backend& backend,
                          const cuda::Target& target) {
  Plan plan;
  try {
    record(problem, backend, target, plan);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    plan.refusal = error.what();
  }
  return plan;
}

/// Whether keys and values may be read in attention.dtype although they are stored as codes, and
/// whether all of them are (stored_kv.h).
struct ReadAsGiven {
  bool some = false;
  bool all = false;

  explicit ReadAsGiven(const Problem& problem) {
    const KvCacheSpec& cache = problem.kv_cache;
    const auto is_one = [](double scale) { return scale == 1; };
    some = problem.attention.type != AttentionType::kMla && cache.int8_level == 0 &&
           has_tensor_scales(cache.dtype);
    all = some && !calculates_kv_scales(problem) && std::ranges::all_of(cache.k_scale, is_one) &&
          std::ranges::all_of(cache.v_scale, is_one);
  }
};

/// What screening of the problem's outputs may be compiled for: the types of what is read, which
/// may be float32 where something is quantised, and whether rows fit into what is kept of them.
std::vector<cuda::ScreenForm> screen_forms(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  const unsigned as_given = cuda::screen_element_bit(a.dtype);
  constexpr unsigned kF32 = cuda::screen_element_bit(attn::Element::kF32);
  const bool quantised = cache_is_quantised(problem) || is_fp8_encoder(problem);
  std::set<unsigned> sets{as_given};
  const ReadAsGiven kv(problem);
  if (quantised) sets = {as_given | kF32};
  if (quantised && kv.some) sets.insert(as_given);
  if (quantised && !kv.all) sets.insert(kF32);
  if (a.type != AttentionType::kMla) {
    const bool kept = cuda::screen_rows_bytes(problem.num_tokens() * a.num_heads, a.v_head_size) <=
                      cuda::kMostKeptScreenBytes;
    std::vector<cuda::ScreenForm> forms;
    for (const unsigned set : sets) forms.push_back({set, kept});
    return forms;
  }
  // Projected or expanded in float64, and as they are in the latent space of a quantised query.
  std::vector<cuda::ScreenForm> forms;
  for (const bool writes_rows : {false, true}) {
    for (const unsigned set : sets) {
      forms.push_back({set | cuda::screen_element_bit(attn::Element::kF64), writes_rows});
      if (set == kF32) forms.push_back({set, writes_rows});
    }
  }
  return forms;
}

/// Rows of a request that share a KV head; the latents of MLA are one.
std::int64_t most_rows_of_head(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  const int kv_heads = a.type == AttentionType::kMla ? 1 : std::max(1, a.num_kv_heads);
  return std::int64_t{problem.max_query_len()} * a.num_heads / kv_heads;
}

}  // namespace

std::vector<KernelSpec> specs_of_pair(const Problem& problem, const Backend& backend,
                                      const cuda::Target& target) {
  Plan plan;
  record(problem, backend, target, plan);
  return std::move(plan.specs);
}

std::vector<KernelSpec> specs_of_screening(const Problem& problem) {
  const AttentionSpec& a = problem.attention;
  if (a.type == AttentionType::kOp) return {};
  const bool is_mla = a.type == AttentionType::kMla;
  std::vector<KernelSpec> specs;
  if (is_mla) specs = cuda::latent_screen_specs();
  std::set<int> widths{a.v_head_size};
  if (is_mla) widths.insert(problem.mla.kv_lora_rank);
  for (const int width : widths) {
    // Decodes and prefills, whatever the batch has of them.
    const bool has_many = most_rows_of_head(problem) > 16;
    for (const int most_rows : {has_many ? 64 : 1, has_many ? 1 : 64}) {
      for (const cuda::ScreenForm& form : screen_forms(problem)) {
        for (KernelSpec& spec : cuda::screen_specs(most_rows, width, form)) {
          specs.push_back(std::move(spec));
        }
      }
    }
  }
  // Last, as it compiles in no time.
  if (!is_mla) specs.push_back(cuda::screen_compare_rows_spec());
  return specs;
}

std::vector<KernelSpec> specs_of_runs(bool times) {
  std::vector<KernelSpec> specs{cuda::zone_scan_spec()};
  if (!times) return specs;
  specs.push_back(clock_spec());
  for (const auto& more : {cuda::sample_specs(), ceiling_specs()}) {
    specs.insert(specs.end(), more.begin(), more.end());
  }
  return specs;
}

void NewKernels::add(const std::vector<KernelSpec>& specs) {
  for (const KernelSpec& spec : specs) {
    if (known_.insert(entry_expression(spec) + program_text(spec)).second) take_(spec);
  }
}

std::vector<cuda::AttendDecision> attend_decisions(const Problem& problem, const Backend& backend,
                                                   const cuda::Target& target) {
  return record_until_refused(problem, backend, target).decisions;
}

Facts planned_facts(const Problem& problem, const Backend& backend, const cuda::Target& target) {
  return record_until_refused(problem, backend, target).facts;
}

void replace_facts(const Facts& planned, Facts& facts) {
  auto next = facts.begin();
  for (const auto& fact : planned) {
    const auto same = std::ranges::find(facts, fact.first, &Facts::value_type::first);
    if (same != facts.end()) {
      *same = fact;
      next = same + 1;
    } else {
      next = facts.insert(next, fact) + 1;
    }
  }
}

std::vector<std::string> kernel_refusals(const Problem& problem, const Backend& backend,
                                         const cuda::Target& target) {
  const Plan plan = record_until_refused(problem, backend, target);
  if (!plan.refusal.empty()) return {plan.refusal};
  if (!plan.decisions.empty()) return {};
  return {fmt::format("kernel {}: the case has no attention to choose a kernel for",
                      backend.forced_kernel())};
}

std::vector<KernelSpec> specs_of_request_alone(const Problem& problem, const Backend& backend,
                                               const cuda::Target& target) {
  const AttentionType type = problem.attention.type;
  const bool repeats = type != AttentionType::kMla && type != AttentionType::kMmEncoder &&
                       type != AttentionType::kOp;
  const std::optional<std::int64_t> request = repeats ? request_to_repeat(problem) : std::nullopt;
  if (!request) return {};
  Problem alone = problem_of_request(problem, *request);
  alone.inputs.file.reset();  // it has the tensors of the whole batch
  // Why: a run leaves out the repetition where a forced kernel does not fit the request.
  if (!backend.forced_kernel().empty()) return record_until_refused(alone, backend, target).specs;
  return specs_of_pair(alone, backend, target);
}

}  // namespace attnbench
