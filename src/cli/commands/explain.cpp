// attnbench explain: the fully resolved problem, and what every backend would do with it.
//
// The problem is shown as JSON with every default filled in, as a result file has it. For each
// backend follow its reasons to refuse, or its own facts, the kernels that it would launch, the
// work and the traffic that rates are computed from, and the memory of its cache.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "backends/backend.h"
#include "backends/traffic.h"
#include "bench/cases/probe.h"
#include "bench/trial/probe_run.h"
#include "cli/cases/device.h"
#include "cli/cases/kernel_specs.h"
#include "cli/cases/plugins.h"
#include "cli/cases/refusals.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/problem/fields.h"
#include "core/system/printable.h"
#include "inputs/needles.h"
#include "metadata/kv_layout.h"
#include "metadata/parts/dcp_model.h"

namespace attnbench {
namespace {

struct ExplainArguments {
  std::string scenario;
  SelectionOptions selection;
  ConsoleOptions console;
};

void print_line(std::ostream& out, const std::string& name, const std::string& value) {
  out << fmt::format("  {:<26} {}\n", name, printable(value));
}

/// Host memory of the tensors that all backends share.
void print_input_memory(std::ostream& out, const Problem& problem) {
  const AttentionSpec& attention = problem.attention;
  const auto size = static_cast<double>(dtype_size(attention.dtype));
  const auto tokens = static_cast<double>(problem.num_tokens());
  const auto keys = static_cast<double>(problem.num_keys());
  out << "memory of the inputs\n";
  print_line(out, "query", format_bytes(tokens * attention.num_heads * attention.head_size * size));
  print_line(out, "key", format_bytes(keys * attention.num_kv_heads * attention.head_size * size));
  print_line(out, "value",
             format_bytes(keys * attention.num_kv_heads * attention.v_head_size * size));
}

/// Where the probe looks: how many needles there are at each kind of place.
void print_needles(std::ostream& out, const Problem& problem) {
  if (!has_probe(problem)) return;
  std::map<NeedleKind, int> counts;
  const std::vector<Needle> needles = plan_needles(probe_problem(problem));
  for (const Needle& needle : needles) ++counts[needle.kind];
  out << "needles of the second draw\n";
  print_line(out, "in all",
             fmt::format("{} in {} rows", needles.size(), needle_rows(needles).size()));
  for (const auto& [kind, count] : counts) {
    print_line(out, to_string(kind), std::to_string(count));
  }
}

/// Device memory of the paged cache in the backend's layout, of all ranks together.
double cache_bytes(const Problem& problem, CacheLayoutKind kind) {
  const KvCacheSpec& cache = problem.kv_cache;
  const KvLayout layout =
      make_kv_layout(kind, cache.layout == CacheLayout::kNhd ? HeadOrder::kNhd : HeadOrder::kHnd,
                     cache.num_blocks, cache.block_size, problem.attention.num_kv_heads,
                     std::max(problem.attention.head_size, problem.attention.v_head_size),
                     is_per_token_head(cache.dtype));
  const Dtype element = kv_element_dtype(cache.dtype, problem.attention.dtype);
  return static_cast<double>(layout.total_elements) * static_cast<double>(dtype_size(element)) *
         problem.dcp.world_size;
}

/// The other types attend to keys and values that are not kept in blocks.
bool has_cache(AttentionType type) {
  return type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder;
}

/// The names are those of `compile --list`; found by planning the case without values.
void print_kernels(std::ostream& out, const Pair& pair, const DeviceChoice& device) {
  if (pair.backend->plugin() != nullptr) return;  // they are the plugin's
  if (!device.is_cuda()) {
    print_line(out, "kernels", "cpu: compiled into the program for " + vector_extensions());
    return;
  }
  for (const KernelSpec& spec : specs_of_pair(*pair.problem, *pair.backend, target_of(device))) {
    const bool is_product = spec.source == "matmul/matmul.cuh";
    const bool may_be_librarys = is_product && !pair.problem->attention.batch_invariant;
    print_line(out, "kernel", spec.name + (may_be_librarys ? ", or cuBLASLt where found" : ""));
  }
}

std::string verdict_text(const cuda::CandidateVerdict& verdict, bool is_forced) {
  if (verdict.is_chosen) return is_forced ? "forced" : "chosen";
  if (!verdict.fits) return "does not fit: " + verdict.reason;
  return verdict.reason.empty() ? "fits, not first" : "fits, not first choice: " + verdict.reason;
}

/// The kernels that each attention operation chooses from, in the order in which they are tried; on
/// the CPU those that a device of the assumed capability would have.
void print_candidates(std::ostream& out, const Pair& pair, const DeviceChoice& device) {
  const Backend& backend = *pair.backend;
  const bool can_plan = backend.chooses_kernels() && device.refusals.empty() &&
                        backend.unforced().refusals(*pair.problem, device.facts).empty();
  if (!can_plan) return;
  const bool is_forced = !backend.forced_kernel().empty();
  for (const cuda::AttendDecision& decision :
       attend_decisions(*pair.problem, backend, target_of(device))) {
    for (const cuda::CandidateVerdict& verdict : decision.candidates) {
      print_line(out, decision.operation + " by " + verdict.name, verdict_text(verdict, is_forced));
    }
  }
}

/// What the ranks of a group give each other, and what that would take by docs/dcp-model.md.
void print_exchanges(std::ostream& out, const Problem& problem) {
  if (problem.dcp.world_size < 2) return;
  std::int64_t tokens = problem.num_tokens();
  int head_size = problem.attention.head_size;
  int width = problem.attention.v_head_size;
  if (problem.attention.type == AttentionType::kMla) {
    // Prefills exchange their context instead, in chunks.
    tokens = std::count_if(problem.batch.begin(), problem.batch.end(),
                           [](const Request& request) { return request.query_len == 1; });
    head_size = problem.mla.kv_lora_rank + problem.mla.qk_rope_head_dim;
    width = problem.mla.kv_lora_rank;
  }
  const DcpMessages messages = dcp_messages(problem, tokens, head_size, width);
  print_line(out, "a rank receives",
             fmt::format("query {}, LSE {}, output {}", format_bytes(messages.query),
                         format_bytes(messages.lse), format_bytes(messages.output)));
  print_line(out, "exchanges (predicted)",
             fmt::format("{:.0f} us over NVLink, {:.0f} us over a network of {:.0f} GB/s",
                         dcp_exchange_us(messages, kNvLink), dcp_exchange_us(messages, kNetwork),
                         kNetwork.gbps));
}

void print_backend(std::ostream& out, const Pair& pair, const DeviceChoice& device) {
  const Problem& problem = *pair.problem;
  const std::vector<std::string> reasons = all_refusals({pair}, device).front();
  out << "backend " << full_name(*pair.backend) << "\n";
  if (!reasons.empty()) {
    for (const std::string& reason : reasons) out << "  unsupported: " << printable(reason) << "\n";
    if (!pair.backend->forced_kernel().empty()) print_candidates(out, pair, device);
    return;
  }
  for (const auto& [fact, value] : pair.backend->explain(problem, device.facts)) {
    print_line(out, fact, value);
  }
  print_exchanges(out, problem);
  print_kernels(out, pair, device);
  print_candidates(out, pair, device);
  print_line(out, "flops", format_si(attention_flops(problem, *pair.backend), "FLOP"));
  const Traffic traffic = attention_traffic(problem, *pair.backend);
  print_line(out, "bytes (unavoidable)", format_bytes(traffic.unique_bytes));
  print_line(out, "bytes (K/V per request)", format_bytes(traffic.kv_bytes));
  if (const auto blind = predicted_blind_spots(problem, *pair.backend)) {
    print_line(
        out, "cannot see",
        blind->empty() ? "nothing that was tried" : fmt::format("{}", fmt::join(*blind, ", ")));
  }
  if (const auto kind = pair.backend->cache_layout_for(problem);
      kind && has_cache(problem.attention.type)) {
    print_line(out, "memory of the cache", format_bytes(cache_bytes(problem, *kind)));
  }
}

int explain(const ExplainArguments& arguments, const Console& console) {
  const DeviceChoice device = choose_device(arguments.selection);
  Plugins plugins(arguments.selection.plugins, device);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios({arguments.scenario}, scenario_overrides(arguments.selection));
  plugins.add_named(named_backends(arguments.selection, scenarios));
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  std::set<const Problem*> problems;
  const Problem* shown = nullptr;
  const bool only_first = arguments.selection.filter.empty();
  for (const Pair& pair : pairs) {
    problems.insert(pair.problem);
    if (only_first && problems.size() > 1) continue;
    if (pair.problem != shown) {
      console.out << (shown == nullptr ? "" : "\n")
                  << fmt::format("case {}/{}\n", pair.problem->scenario,
                                 printable(pair.problem->case_name))
                  << problem_to_json(*pair.problem, 2) << "\n";
      print_input_memory(console.out, *pair.problem);
      print_needles(console.out, *pair.problem);
      shown = pair.problem;
    }
    print_backend(console.out, pair, device);
  }
  if (only_first && problems.size() > 1) {
    console.out << fmt::format("\n{} more cases; choose with --filter REGEX\n",
                               problems.size() - 1);
  }
  return pairs.empty() ? kExitNothingRan : kExitPassed;
}

}  // namespace

RunCommand declare_explain(OptionTable& options) {
  auto arguments = std::make_shared<ExplainArguments>();
  options.add({.names = "SCENARIO",
               .help = "Scenario file, or name of a shipped scenario",
               .target = &arguments->scenario,
               .required = true});
  add_selection_options(options, arguments->selection);
  add_plugin_option(options, arguments->selection.plugins);
  add_console_options(options, arguments->console);
  return [arguments](const Console& console) { return explain(*arguments, console); };
}

}  // namespace attnbench
