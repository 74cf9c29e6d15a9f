// attnbench explain: the fully resolved problem, and what every backend would do with it.
//
// The problem is shown as JSON with its defaults filled in, as a result file has it. For each
// backend follow its reasons to refuse, or its own facts, the kernels that it would launch, the
// work and the traffic that rates are computed from, and the memory of its cache. What several
// backends have in common stands once; with --verbose nothing is left out or put together.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
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
#include "core/parsing.h"
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

/// Lines of the terminal end by its width.
void print_line(std::ostream& out, const std::string& name, const std::string& value) {
  constexpr std::size_t kValueColumn = 29;
  const auto width = static_cast<std::size_t>(output_width(STDOUT_FILENO));
  const std::string start = fmt::format("  {:<{}} ", printable(name), kValueColumn - 3);
  if (start.size() <= kValueColumn || start.size() + value.size() <= width) {
    out << start << hang(printable(value), start.size(), width, kValueColumn) << "\n";
    return;
  }
  // Beside a list of names there is no room.
  out << "  " << hang(printable(name), 2, width, 2) << "\n"
      << std::string(kValueColumn, ' ') << hang(printable(value), kValueColumn, width, kValueColumn)
      << "\n";
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

/// The resolved problem: the keys that the case reads, or with `whole` all of them. A query_dtype
/// that is left to the backends is no resolved value: the facts of each say what it stands for.
/// Either is a scenario again.
void print_problem(std::ostream& out, const Problem& problem, bool whole) {
  auto json = parse_json<nlohmann::ordered_json>(problem_to_json(problem));
  if (whole) {
    out << problem_text(json);
    return;
  }
  for (const ReadRule& rule : read_rules()) {
    if (rule.reads != nullptr && !rule.reads(problem)) erase_key(json, rule.key);
  }
  if (json["attention"].value("query_dtype", "") == "auto") {
    erase_key(json, "attention.query_dtype");
  }
  out << problem_text(json) << "(-v shows every key)\n";
}

/// Host memory of the tensors that all backends share.
std::string input_memory(const Problem& problem) {
  const AttentionSpec& attention = problem.attention;
  const auto size = static_cast<double>(dtype_size(attention.dtype));
  const auto tokens = static_cast<double>(problem.num_tokens());
  const auto keys = static_cast<double>(problem.num_keys());
  return fmt::format("query {}, key {}, value {}",
                     format_bytes(tokens * attention.num_heads * attention.head_size * size),
                     format_bytes(keys * attention.num_kv_heads * attention.head_size * size),
                     format_bytes(keys * attention.num_kv_heads * attention.v_head_size * size));
}

/// Where the probe looks: how many needles there are at each kind of place.
std::string needles_text(const Problem& problem) {
  std::map<NeedleKind, int> counts;
  const std::vector<Needle> needles = plan_needles(probe_problem(problem));
  for (const Needle& needle : needles) ++counts[needle.kind];
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : counts) {
    kinds.push_back(fmt::format("{} {}", to_string(kind), count));
  }
  const std::size_t rows = needle_rows(needles).size();
  return fmt::format("{} in {} row{}: {}", needles.size(), rows, rows == 1 ? "" : "s",
                     fmt::join(kinds, ", "));
}

/// The size in which kernels page when all backends of a case share one cache (§1.7); empty where
/// they do not.
std::string kernel_block_size(const std::vector<const Backend*>& backends, const Problem& problem,
                              const DeviceChoice& device) {
  std::vector<std::vector<BlockSizeRule>> lists;
  for (const Backend* backend : backends) {
    std::vector<BlockSizeRule> sizes = backend->block_sizes();
    if (sizes.empty() || backend->is_users() || !backend->refusals(problem, device.facts).empty()) {
      continue;
    }
    lists.push_back(std::move(sizes));
  }
  if (lists.size() < 2) return {};
  try {
    return fmt::format("{} tokens, of blocks of {}; one cache for all backends",
                       select_common_block_size(problem.kv_cache.block_size, lists),
                       problem.kv_cache.block_size);
  } catch (const Error& error) {
    return error.what();
  }
}

/// What all backends are given.
void print_inputs(std::ostream& out, const Problem& problem, const std::vector<Pair>& pairs,
                  const DeviceChoice& device) {
  out << "inputs\n";
  print_line(out, "memory", input_memory(problem));
  if (has_probe(problem)) print_line(out, "needles of the second draw", needles_text(problem));
  std::vector<const Backend*> backends;
  for (const Pair& pair : pairs) backends.push_back(pair.backend);
  const std::string size = kernel_block_size(backends, problem, device);
  if (!size.empty()) print_line(out, "kernel block size", size);
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
  if (cache.num_blocks == 0) return 0;  // no request has keys
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

/// What depends on the kernels of the device; on the CPU, which goes another way then, that of a
/// device of the assumed capability beside its own.
void add_planned(const Pair& pair, const DeviceChoice& device, Facts& facts) {
  if (!pair.backend->chooses_kernels() || !device.refusals.empty()) return;
  const Facts planned = planned_facts(*pair.problem, *pair.backend, target_of(device));
  if (device.is_cuda()) return replace_facts(planned, facts);
  for (const auto& [name, value] : planned) {
    if (std::ranges::find(facts, Facts::value_type{name, value}) != facts.end()) continue;
    facts.emplace_back(
        fmt::format("{} on SM {}.{}", name, device.facts.sm / 10, device.facts.sm % 10), value);
  }
}

/// The names are those of `compile --list`; found by planning the case without values.
void add_kernels(const Pair& pair, const DeviceChoice& device, Facts& facts) {
  if (pair.backend->plugin() != nullptr) return;  // they are the plugin's
  if (!device.is_cuda()) {
    facts.emplace_back("kernels", "cpu: compiled into the program for " + vector_extensions());
    return;
  }
  for (const KernelSpec& spec : specs_of_pair(*pair.problem, *pair.backend, target_of(device))) {
    const bool is_product = spec.source == "matmul/matmul.cuh";
    const bool may_be_librarys = is_product && !pair.problem->attention.batch_invariant;
    facts.emplace_back("kernel", spec.name + (may_be_librarys ? ", or cuBLASLt where found" : ""));
  }
}

/// What the ranks of a group give each other, and what that would take by docs/dcp-model.md.
void add_exchanges(const Problem& problem, Facts& facts) {
  if (problem.dcp.world_size < 2) return;
  const DcpMessages messages = dcp_messages(problem);
  facts.emplace_back("a rank receives",
                     fmt::format("query {}, LSE {}, output {}", format_bytes(messages.query),
                                 format_bytes(messages.lse), format_bytes(messages.output)));
  facts.emplace_back("exchanges (predicted)",
                     fmt::format("{:.0f} us over NVLink, {:.0f} us over a network of {:.0f} GB/s",
                                 dcp_exchange_us(messages, kNvLink),
                                 dcp_exchange_us(messages, kNetwork), kNetwork.gbps));
}

/// A step over more ranks, by the same page.
void add_scaling(const Problem& problem, Facts& facts) {
  if (problem.dcp.world_size < 2) return;
  std::string text;
  for (const int ranks : {1, 2, 4, 8, 16, 32, 64}) {
    if (problem.attention.num_heads % ranks != 0) continue;
    const bool is_near = ranks <= kMostNvLinkRanks;
    text += fmt::format("{}{} {:.0f}{}", text.empty() ? "" : ", ", ranks,
                        dcp_step_us(problem, ranks, kH200Rank, is_near ? kNvLink : kNetwork),
                        is_near ? "" : " (network)");
  }
  facts.emplace_back(
      "step by ranks (predicted)",
      fmt::format("{} us; on H200s, keys at {:.0f} GB/s a rank", text, kH200Rank.gbps));
}

/// A backend that supports the case.
Facts facts_of(const Pair& pair, const DeviceChoice& device) {
  const Problem& problem = *pair.problem;
  Facts facts = pair.backend->explain(problem, device.facts);
  add_planned(pair, device, facts);
  if (has_cache(problem.attention.type) && problem.kv_cache.int8_level == 0) {
    const bool is_quantised = query_is_quantised(problem, pair.backend->kernel_rules());
    const std::string_view query =
        is_quantised ? "fp8_e4m3 by q_scale" : dtype_name(problem.attention.dtype);
    facts.emplace_back("query", query);
  }
  add_exchanges(problem, facts);
  add_scaling(problem, facts);
  add_kernels(pair, device, facts);
  facts.emplace_back("flops", format_si(attention_flops(problem, *pair.backend), "FLOP"));
  const Traffic traffic = attention_traffic(problem, *pair.backend);
  facts.emplace_back("bytes (unavoidable)", format_bytes(traffic.unique_bytes));
  facts.emplace_back("bytes (K/V per request)", format_bytes(traffic.kv_bytes));
  if (const auto blind = predicted_blind_spots(problem, *pair.backend)) {
    facts.emplace_back("cannot see", blind->empty() ? "nothing that was tried"
                                                    : fmt::format("{}", fmt::join(*blind, ", ")));
  }
  if (const auto kind = pair.backend->cache_layout_for(problem);
      kind && has_cache(problem.attention.type)) {
    facts.emplace_back("memory of the cache", format_bytes(cache_bytes(problem, *kind)));
  }
  return facts;
}

std::string verdict_text(const cuda::CandidateVerdict& verdict, bool is_forced) {
  if (verdict.is_chosen) return is_forced ? "forced" : "chosen";
  if (!verdict.fits) return "does not fit: " + verdict.reason;
  return verdict.reason.empty() ? "fits, not first" : "fits, not first choice: " + verdict.reason;
}

/// Lines below a heading that names the backends they are true of.
struct Section {
  std::string title;  // what stands before the names
  std::vector<std::string> backends;
  Facts facts;  // one with an empty second part is a sentence
};

/// The kernels that an attention operation chooses from, in the order in which they are tried; on
/// the CPU those that a device of the assumed capability would have.
Section candidates_section(const cuda::AttendDecision& decision, const Backend& backend,
                           bool whole) {
  // A forced kernel may leave a call to the one that is chosen without it.
  const std::string_view forced = cuda::parse_forced_kernel(backend.forced_kernel()).name;
  Section section{"kernels for " + decision.operation + " of ", {full_name(backend)}, {}};
  for (const cuda::CandidateVerdict& verdict : decision.candidates) {
    const std::string text = verdict_text(verdict, verdict.name == forced);
    const auto same = std::ranges::find(section.facts, text, &Facts::value_type::second);
    if (whole || same == section.facts.end()) {
      section.facts.emplace_back(verdict.name, text);
    } else {
      same->first += ", " + verdict.name;
    }
  }
  return section;
}

std::vector<Section> candidates_of(const Pair& pair, const DeviceChoice& device, bool whole) {
  const Backend& backend = *pair.backend;
  const bool can_plan = backend.chooses_kernels() && device.refusals.empty() &&
                        backend.unforced().refusals(*pair.problem, device.facts).empty();
  std::vector<Section> sections;
  if (!can_plan) return sections;
  for (const cuda::AttendDecision& decision :
       attend_decisions(*pair.problem, backend, target_of(device))) {
    sections.push_back(candidates_section(decision, backend, whole));
  }
  return sections;
}

/// The facts of several backends by who they are true of: first what all have in common.
std::vector<Section> by_backends(const std::vector<Section>& sections) {
  std::vector<Section> result;
  for (const Section& section : sections) {
    for (const auto& fact : section.facts) {
      Section shared{{}, {}, {fact}};
      for (const Section& other : sections) {
        if (std::ranges::find(other.facts, fact) != other.facts.end()) {
          shared.backends.push_back(other.backends.front());
        }
      }
      const auto same = std::ranges::find(result, shared.backends, &Section::backends);
      if (same == result.end()) {
        result.push_back(std::move(shared));
      } else if (shared.backends.front() == section.backends.front()) {
        same->facts.push_back(fact);
      }
    }
  }
  std::ranges::stable_sort(result, std::greater<>(),
                           [](const Section& section) { return section.backends.size(); });
  return result;
}

/// Adds a section, or its backend to an earlier one that says the same.
void add_section(std::vector<Section>& sections, Section added) {
  const auto same = std::ranges::find_if(sections, [&](const Section& section) {
    return section.title == added.title && section.facts == added.facts;
  });
  if (same == sections.end()) {
    sections.push_back(std::move(added));
  } else {
    same->backends.push_back(added.backends.front());
  }
}

void print_section(std::ostream& out, const Section& section) {
  if (section.facts.empty()) return;
  const std::string plural = section.title.empty() && section.backends.size() > 1 ? "s " : " ";
  out << (section.title.empty() ? "backend" + plural : section.title)
      << fmt::format("{}\n", fmt::join(section.backends, ", "));
  for (const auto& [name, value] : section.facts) {
    if (value.empty()) {
      out << "  " << printable(name) << "\n";
    } else {
      print_line(out, name, value);
    }
  }
}

/// With `whole` one backend after the other, else what several say once.
void print_backends(std::ostream& out, const std::vector<Pair>& pairs, const DeviceChoice& device,
                    bool whole) {
  std::vector<Section> supporting;
  std::vector<Section> refusing;
  std::vector<Section> kernels;
  const std::vector<std::vector<std::string>> all_reasons = all_refusals(pairs, device);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Backend& backend = *pairs[i].backend;
    const bool is_refused = !all_reasons[i].empty();
    Section section{{}, {full_name(backend)}, {}};
    for (const std::string& reason : all_reasons[i]) {
      section.facts.emplace_back("unsupported: " + reason, "");
    }
    if (!is_refused) section.facts = facts_of(pairs[i], device);
    std::vector<Section> candidates;
    if (!is_refused || !backend.forced_kernel().empty()) {
      candidates = candidates_of(pairs[i], device, whole);
    }
    if (whole) {
      print_section(out, section);
      for (const Section& found : candidates) print_section(out, found);
      continue;
    }
    if (is_refused) {
      add_section(refusing, std::move(section));
    } else {
      supporting.push_back(std::move(section));
    }
    for (Section& found : candidates) add_section(kernels, std::move(found));
  }
  for (const std::vector<Section>& sections : {by_backends(supporting), refusing, kernels}) {
    for (const Section& section : sections) print_section(out, section);
  }
}

void print_case(std::ostream& out, const std::vector<Pair>& pairs, const DeviceChoice& device,
                bool whole) {
  const Problem& problem = *pairs.front().problem;
  out << fmt::format("case {}/{}\n", problem.scenario, printable(problem.case_name));
  print_problem(out, problem, whole);
  print_inputs(out, problem, pairs, device);
  print_upstream_choice(out, problem, device);
  print_quantising(out, problem, device);
  print_backends(out, pairs, device, whole);
}

int explain(const ExplainArguments& arguments, const Console& console) {
  const DeviceChoice device = choose_device(arguments.selection);
  Plugins plugins(arguments.selection.plugins, device);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios({arguments.scenario}, scenario_overrides(arguments.selection));
  if (!arguments.console.quiet) print_notices(scenarios, console);
  plugins.add_named(named_backends(arguments.selection, scenarios));
  const std::vector<Pair> pairs = select_pairs(scenarios, arguments.selection, plugins.backends());
  if (pairs.empty() && !arguments.console.quiet) {
    print_error(console.err, why_no_pairs(arguments.selection));
  }
  std::vector<std::vector<Pair>> cases;
  for (const Pair& pair : pairs) {
    if (cases.empty() || cases.back().front().problem != pair.problem) cases.emplace_back();
    cases.back().push_back(pair);
  }
  const bool only_first = arguments.selection.filter.empty();
  for (const std::vector<Pair>& of_case : cases) {
    if (only_first && &of_case != &cases.front()) break;
    if (&of_case != &cases.front()) console.out << "\n";
    print_case(console.out, of_case, device, arguments.console.verbose);
  }
  if (only_first && cases.size() > 1) {
    console.out << fmt::format("\n{} more case{}; choose with --filter REGEX\n", cases.size() - 1,
                               cases.size() == 2 ? "" : "s");
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
