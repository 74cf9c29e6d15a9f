// attnbench explain: the fully resolved problem, and what every backend would do with it.
//
// The problem is shown as JSON with every default filled in, as a result file has it. For each
// backend follow its reasons to refuse, or its own facts, the kernels that it would launch, the
// work and the traffic that rates are computed from, and the memory of its cache.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "backends/backend.h"
#include "backends/traffic.h"
#include "backends/upstream_choice.h"
#include "bench/cases/probe.h"
#include "bench/trial/probe_run.h"
#include "cli/cases/device.h"
#include "cli/cases/kernel_specs.h"
#include "cli/cases/plugins.h"
#include "cli/cases/quantising.h"
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
#include "inputs/cache/stored_kv.h"
#include "inputs/needles.h"
#include "metadata/kv_layout.h"
#include "metadata/parts/dcp_model.h"
#include "scenario/resolve/unread.h"

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

/// Takes the value of a dotted key out, and sections that are empty then.
void erase_key(nlohmann::ordered_json& section, std::string_view key) {
  const std::size_t dot = key.find('.');
  const std::string name(key.substr(0, dot));
  if (dot == std::string_view::npos) {
    section.erase(name);
    return;
  }
  erase_key(section.at(name), key.substr(dot + 1));
  if (section.at(name).empty()) section.erase(name);
}

/// JSON on one line, with a space after each colon and comma.
std::string one_line(const nlohmann::ordered_json& json) {
  std::string text;
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key, one_line(value));
    }
    return "{" + text + "}";
  }
  if (json.is_array()) {
    for (const auto& value : json) text += (text.empty() ? "" : ", ") + one_line(value);
    return "[" + text + "]";
  }
  return json.dump();
}

/// A section, or a list, on lines of its own, each as full as the terminal is wide.
std::string filled_section(const nlohmann::ordered_json& section, std::size_t width) {
  constexpr const char* kIndent = "\n    ";
  constexpr std::size_t kIndentWidth = 4;
  const bool is_object = section.is_object();
  std::string text = is_object ? "{" : "[";
  std::size_t column = width;
  for (auto item = section.begin(); item != section.end(); ++item) {
    const std::string name = is_object ? fmt::format("\"{}\": ", item.key()) : "";
    const std::string words =
        name + one_line(item.value()) + (std::next(item) == section.end() ? "" : ",");
    const bool fits = column + 1 + words.size() <= width;
    text += (fits ? " " : kIndent) + words;
    column = fits ? column + 1 + words.size() : kIndentWidth + words.size();
  }
  return text + (is_object ? "\n  }" : "\n  ]");
}

/// JSON of a problem, a line a key and a few lines a section.
std::string problem_text(const nlohmann::ordered_json& json) {
  const auto width = static_cast<std::size_t>(std::clamp(output_width(STDOUT_FILENO), 40, 100));
  std::string text;
  for (const auto& [key, value] : json.items()) {
    const std::string line = one_line(value);
    const bool fits = !value.is_structured() || line.size() + key.size() + 7 <= width;
    text += fmt::format("{}\n  \"{}\": {}", text.empty() ? "" : ",", key,
                        fits ? line : filled_section(value, width));
  }
  return "{" + text + "\n}\n";
}

/// The resolved problem: the keys that the case reads, or with `whole` all of them.
void print_problem(std::ostream& out, const Problem& problem, bool whole) {
  auto json = nlohmann::ordered_json::parse(problem_to_json(problem));
  if (whole) {
    out << problem_text(json);
    return;
  }
  for (const ReadRule& rule : read_rules()) {
    if (rule.reads != nullptr && !rule.reads(problem)) erase_key(json, rule.key);
  }
  out << problem_text(json) << "keys that this case does not read are left out; -v shows them\n";
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

/// The backends that vLLM tries where the user names none, in its order.
void print_upstream_choice(std::ostream& out, const Problem& problem, const DeviceChoice& device) {
  const std::vector<UpstreamCandidate> all = upstream_candidates(problem, device.facts);
  if (all.empty()) return;
  const std::size_t chosen = upstream_choice(all);
  out << fmt::format("vLLM's choice on SM {}.{}\n", device.facts.sm / 10, device.facts.sm % 10);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string text = i == chosen ? "chosen" : "fits, not first";
    if (!all[i].reasons.empty()) {
      text = fmt::format("{}", fmt::join(all[i].reasons, "; "));
    } else if (all[i].here != all[i].name) {
      text += all[i].here.empty() ? ", no backend of attnbench" : ", here " + all[i].here;
    }
    print_line(out, all[i].name, text);
  }
  if (chosen == all.size()) return print_line(out, "in all", "none: vLLM refuses the model");
  for (const std::string& late : upstream_afterthoughts(problem, device.facts, all)) {
    print_line(out, "then", late);
  }
}

/// The size in which kernels page when all backends of a case share one cache (§1.7).
void print_kernel_block_size(std::ostream& out, const std::vector<const Backend*>& backends,
                             const Problem& problem, const DeviceChoice& device) {
  std::vector<std::vector<BlockSizeRule>> lists;
  for (const Backend* backend : backends) {
    std::vector<BlockSizeRule> sizes = backend->block_sizes();
    if (sizes.empty() || backend->is_users() || !backend->refusals(problem, device.facts).empty()) {
      continue;
    }
    lists.push_back(std::move(sizes));
  }
  if (lists.size() < 2) return;
  std::string text;
  try {
    text = fmt::format("{} tokens, of blocks of {}",
                       select_common_block_size(problem.kv_cache.block_size, lists),
                       problem.kv_cache.block_size);
  } catch (const Error& error) {
    text = error.what();
  }
  out << "one cache for all backends\n";
  print_line(out, "kernel block size", text);
}

/// Whether int8 or fp8 makes such work faster on the GPU, by what was measured.
void print_quantising(std::ostream& out, const Problem& problem, const DeviceChoice& device) {
  const std::string gpu = gpu_of(device);
  const auto facts = quantising_facts(problem, gpu);
  if (facts.empty()) return;
  out << fmt::format("quantising on {}, measured with 32 heads on 8\n", printable(gpu));
  for (const auto& [name, text] : facts) print_line(out, name, text);
}

/// Device memory of the paged cache in the backend's layout, of all ranks together.
double cache_bytes(const Problem& problem, CacheLayoutKind kind) {
  const KvCacheSpec& cache = problem.kv_cache;
  const KvLayout layout = make_kv_layout(
      kind, cache.layout == CacheLayout::kNhd ? HeadOrder::kNhd : HeadOrder::kHnd, cache.num_blocks,
      cache.block_size, problem.attention.num_kv_heads,
      std::max(problem.attention.head_size, problem.attention.v_head_size), cache.dtype);
  const Dtype element = kv_element_dtype(cache.dtype, problem.attention.dtype);
  return static_cast<double>(layout.total_elements) * static_cast<double>(dtype_size(element)) *
         problem.dcp.world_size * cache.layers.value_or(1);
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
  // A forced kernel may leave a call to the one that is chosen without it.
  const std::string_view forced = cuda::parse_forced_kernel(backend.forced_kernel()).name;
  for (const cuda::AttendDecision& decision :
       attend_decisions(*pair.problem, backend, target_of(device))) {
    for (const cuda::CandidateVerdict& verdict : decision.candidates) {
      print_line(out, decision.operation + " by " + verdict.name,
                 verdict_text(verdict, verdict.name == forced));
    }
  }
}

/// What the ranks of a group give each other, and what that would take by docs/dcp-model.md.
void print_exchanges(std::ostream& out, const Problem& problem) {
  if (problem.dcp.world_size < 2) return;
  const DcpMessages messages = dcp_messages(problem);
  print_line(out, "a rank receives",
             fmt::format("query {}, LSE {}, output {}", format_bytes(messages.query),
                         format_bytes(messages.lse), format_bytes(messages.output)));
  print_line(out, "exchanges (predicted)",
             fmt::format("{:.0f} us over NVLink, {:.0f} us over a network of {:.0f} GB/s",
                         dcp_exchange_us(messages, kNvLink), dcp_exchange_us(messages, kNetwork),
                         kNetwork.gbps));
}

/// A step over more ranks, by the same page.
void print_scaling(std::ostream& out, const Problem& problem) {
  if (problem.dcp.world_size < 2) return;
  std::string text;
  for (const int ranks : {1, 2, 4, 8, 16, 32, 64}) {
    if (problem.attention.num_heads % ranks != 0) continue;
    const bool is_near = ranks <= kMostNvLinkRanks;
    text += fmt::format("{}{} {:.0f}{}", text.empty() ? "" : ", ", ranks,
                        dcp_step_us(problem, ranks, kH200Rank, is_near ? kNvLink : kNetwork),
                        is_near ? "" : " (network)");
  }
  print_line(out, "step by ranks (predicted)",
             fmt::format("{} us; on H200s, keys at {:.0f} GB/s a rank", text, kH200Rank.gbps));
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
  if (has_cache(problem.attention.type) && problem.kv_cache.int8_level == 0) {
    const bool is_quantised = query_is_quantised(problem, pair.backend->kernel_rules());
    const std::string_view query =
        is_quantised ? "fp8_e4m3 by q_scale" : dtype_name(problem.attention.dtype);
    print_line(out, "query", std::string(query));
  }
  print_exchanges(out, problem);
  print_scaling(out, problem);
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

std::vector<const Backend*> backends_of_case(const std::vector<Pair>& pairs,
                                             const Problem* problem) {
  std::vector<const Backend*> backends;
  for (const Pair& pair : pairs) {
    if (pair.problem == problem) backends.push_back(pair.backend);
  }
  return backends;
}

int explain(const ExplainArguments& arguments, const Console& console) {
  const DeviceChoice device = choose_device(arguments.selection);
  Plugins plugins(arguments.selection.plugins, device);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios({arguments.scenario}, scenario_overrides(arguments.selection));
  plugins.add_named(named_backends(arguments.selection, scenarios));
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  if (pairs.empty() && !arguments.console.quiet) {
    print_error(console.err, why_no_pairs(arguments.selection));
  }
  std::set<const Problem*> problems;
  const Problem* shown = nullptr;
  const bool only_first = arguments.selection.filter.empty();
  for (const Pair& pair : pairs) {
    problems.insert(pair.problem);
    if (only_first && problems.size() > 1) continue;
    if (pair.problem != shown) {
      console.out << (shown == nullptr ? "" : "\n")
                  << fmt::format("case {}/{}\n", pair.problem->scenario,
                                 printable(pair.problem->case_name));
      print_problem(console.out, *pair.problem, arguments.console.verbose);
      print_input_memory(console.out, *pair.problem);
      print_needles(console.out, *pair.problem);
      print_upstream_choice(console.out, *pair.problem, device);
      print_kernel_block_size(console.out, backends_of_case(pairs, pair.problem), *pair.problem,
                              device);
      print_quantising(console.out, *pair.problem, device);
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
