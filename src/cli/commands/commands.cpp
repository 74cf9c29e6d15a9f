#include "cli/commands/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/options/option_parser.h"
#include "cli/terminal/text.h"
#include "core/error.h"

namespace attnbench {
namespace {

constexpr const char* kExample =
    "Example:\n"
    "  attnbench run scenarios/quickstart.yaml\n"
    "  attnbench run smoke --backend TRITON_ATTN --json results.json\n"
    "\n"
    "'attnbench help COMMAND' shows the options of a command.";

constexpr const char* kHelpCommand = "help";

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.emplace_back(command.name);
  return names;
}

/// `attnbench help run` as `attnbench run --help`; every other line as it is.
std::vector<std::string> without_help_command(const std::vector<std::string>& argv) {
  if (argv.size() < 2 || argv[1] != kHelpCommand) return argv;
  if (argv.size() > 3) {
    fail(ErrorKind::kUsage, "help: expected at most one command, found {}", argv.size() - 2);
  }
  if (argv.size() == 2 || argv[2] == kHelpCommand) return {argv[0], "--help"};
  return {argv[0], argv[2], "--help"};
}

/// Why by hand: the parser calls an unknown command an unexpected argument.
void check_command_name(const std::vector<std::string>& argv) {
  if (argv.size() < 2) {
    fail(ErrorKind::kUsage, "expected a command: {}; see 'attnbench --help'",
         join(command_names(), ", "));
  }
  const std::string& word = argv[1];
  if (!word.empty() && word.front() == '-') return;
  const std::vector<std::string> names = command_names();
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  fail(ErrorKind::kUsage, "unknown command '{}'{} (commands: {})", word, did_you_mean(word, names),
       join(names, ", "));
}

}  // namespace

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands = {
      {"run", "Validate and time every case on every backend",
       "  attnbench run scenarios/quickstart.yaml\n"
       "  attnbench run decode --backend FLASH_ATTN --set attention.head_size=64 --json out.json\n"
       "  attnbench run decode --plugin ./libmine.so",
       declare_run},
      {"support", "Show which backend can run which case, and why not; runs nothing",
       "  attnbench support smoke --backend TRITON_ATTN", declare_support},
      {"explain", "Show the fully resolved problem and what the backends would do with it",
       "  attnbench explain scenarios/quickstart.yaml --filter FLASH_ATTN", declare_explain},
      {"compile", "Compile the kernels of scenarios into the cache; needs no GPU",
       "  attnbench compile decode --arch sm_90a --arch sm_80", declare_compile},
      {"validate", "Check scenario files", "  attnbench validate scenarios/*.yaml",
       declare_validate},
      {"device", "List the devices of this machine and measure their peak rates",
       "  attnbench device --json device.json", declare_device},
      {"invariance", "Show what a request's result depends on besides the request itself",
       "  attnbench invariance smoke-prefill --backend FLASH_ATTN --backend TRITON_ATTN",
       declare_invariance},
      {"compose",
       "Combine attention, merges and ranks from different libraries, and check the result",
       "  attnbench compose smoke-decode --backend FLASH_ATTN --plugin ./libmine.so",
       declare_compose},
      {"gate", "Compare results with a baseline and fail when something got worse",
       "  attnbench gate baseline.json results.json --markdown summary.md", declare_gate},
      {"merge", "Join the result files of the parts of a run",
       "  attnbench merge part-*.json -o all.json", declare_merge},
      {"report", "Show result files as a table, or write a page with plots or other formats",
       "  attnbench report results.json -o report.html\n"
       "  attnbench report results.json --csv results.csv --junit -\n"
       "  attnbench report before.json after.json -o compared.html",
       declare_report},
      {"calibrate", "Write FP8 or INT8 scale files, and show what each method's scales cost",
       "  attnbench calibrate models/qwen2.5-vl-7b --set inputs.distribution=outlier --output "
       "s.json\n"
       "  attnbench calibrate --tensors captured/*.safetensors --method mse --output scales.json",
       declare_calibrate},
      {"scales", "Check a scale file and show the attention error that it causes",
       "  attnbench scales scales.json --layers 'visual.blocks.{}.attn.attn:32'\n"
       "  attnbench scales scales.json --tensors captured/*.safetensors",
       declare_scales},
      {"import", "Turn workloads of FlashInfer-Trace or SOL-ExecBench into scenarios",
       "  attnbench import definitions/gqa_paged/gqa_paged_decode_h32_kv8_d128_ps16.json \\\n"
       "    workloads/gqa_paged/gqa_paged_decode_h32_kv8_d128_ps16.jsonl -o scenarios/",
       declare_import},
      {"diff", "Compare two result files case by case, in the terminal",
       "  attnbench diff before.json after.json", declare_diff},
      {"history", "Show trends over many runs, and when results changed",
       "  attnbench run decode --history runs.jsonl\n"
       "  attnbench history runs.jsonl --filter FLASH_ATTN",
       declare_history},
      {"init", "Write a scenario, or a plugin to start from",
       "  attnbench init --hf Llama-3.1-8B/config.json\n"
       "  attnbench init plugin my-kernel",
       declare_init},
      {"list", "List backends, scenarios and metrics",
       "  attnbench list backends\n"
       "  attnbench list scenarios --all",
       declare_list},
      {"completion", "Print a completion script for bash, zsh or fish",
       "  source <(attnbench completion bash)\n"
       "  attnbench completion fish > ~/.config/fish/completions/attnbench.fish",
       declare_completion},
      {"man", "Print the manual page", "  attnbench man | man -l -", declare_man},
  };
  return commands;
}

void for_each_option(const std::function<void(const Command&, const Option&)>& visit) {
  for (const Command& command : all_commands()) {
    OptionTable options;
    const RunCommand owner = command.declare(options);  // of the targets
    visit(command, help_option());
    for (const Option& option : options.rows()) visit(command, option);
  }
}

int run_command_line(const Console& console) {
  const std::vector<std::string> words = without_help_command(console.command);
  check_command_name(words);
  ProgramSyntax program;
  program.name = "attnbench";
  program.description =
      "attnbench - a referee for attention kernels: is it right, and how fast is it?";
  program.footer = kExample;
  program.version = fmt::format("attnbench {} ({})", tool_version(), git_commit());
  std::vector<RunCommand> runs;
  for (const Command& command : all_commands()) {
    program.commands.push_back(
        {command.name, command.summary, fmt::format("Example:\n{}", command.example), {}});
    runs.push_back(command.declare(program.commands.back().options));
  }
  const ParsedLine line = parse_line(program, words);
  console.out << line.answer;
  return line.command ? runs[*line.command](console) : kExitPassed;
}

}  // namespace attnbench
