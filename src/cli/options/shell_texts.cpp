#include "cli/options/shell_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "cli/terminal/text.h"

namespace attnbench {
namespace {

/// What a shell offers where the value of a row, or an argument, is due.
enum class Completes { kNothing, kChoices, kFiles, kFolders, kScenarios, kBackends };

Completes completes(const Option& option) {
  if (!option.choices.empty()) return Completes::kChoices;
  const std::string name = long_name(option);
  if (name == "--backend") return Completes::kBackends;
  if (name == "SCENARIO") return Completes::kScenarios;
  if (option.value == "DIR") return Completes::kFolders;
  // Arguments of the other commands are files: FILE, FILES, RESULTS.
  if (option.value == "FILE" || is_argument(option)) return Completes::kFiles;
  return Completes::kNothing;
}

/// "-q" and "--quiet" of "-q,--quiet".
std::vector<std::string> spellings(const Option& option) {
  std::vector<std::string> names;
  std::istringstream text(option.names);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

/// Every option's names; arguments have none.
std::vector<std::string> option_names(const DescribedCommand& command) {
  std::vector<std::string> names;
  for (const Option& option : command.options) {
    if (is_argument(option)) continue;
    for (const std::string& name : spellings(option)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> command_names(const DescribedProgram& program) {
  std::vector<std::string> names;
  for (const DescribedCommand& command : program.commands) names.push_back(command.name);
  names.emplace_back("help");
  return names;
}

/// The argument whose words are completed: the last one, which may be given several times.
const Option* last_argument(const DescribedCommand& command) {
  const Option* found = nullptr;
  for (const Option& option : command.options) {
    if (is_argument(option)) found = &option;
  }
  return found;
}

bool has_value(const Option& option) {
  return !is_argument(option) && !is_flag(option) && long_name(option) != "--help";
}

bool is_repeatable(const Option& option) {
  return std::holds_alternative<std::vector<std::string>*>(option.target);
}

/// Up to the end of the first sentence or clause, for menus.
std::string short_help(const Option& option) {
  return option.help.substr(0, option.help.find_first_of(";("));
}

std::string with_trailing_space_cut(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, from.size(), from) == 0) {
      result += to;
      at += from.size();
    } else {
      result += text[at++];
    }
  }
  return result;
}

std::string bash_action(const Option& option) {
  switch (completes(option)) {
    case Completes::kChoices:
      return fmt::format("_attnbench_words '{}'", join(option.choices, " "));
    case Completes::kFiles:
      return "_attnbench_paths -f";
    case Completes::kFolders:
      return "_attnbench_paths -d";
    case Completes::kScenarios:
      return "_attnbench_words \"$(attnbench list scenarios --names 2>/dev/null)\"; "
             "_attnbench_paths -f";
    case Completes::kBackends:
      return "_attnbench_words \"$(attnbench list backends --names 2>/dev/null)\"";
    case Completes::kNothing:
      return ":";
  }
  return ":";
}

/// The case of one command: values behind their options, then options or arguments.
std::string bash_command(const DescribedCommand& command) {
  std::string text = fmt::format("    {})\n      case $prev in\n", command.name);
  for (const Option& option : command.options) {
    if (!has_value(option)) continue;
    text += fmt::format("        {}) {}; return ;;\n", join(spellings(option), "|"),
                        bash_action(option));
  }
  text += "      esac\n";
  text += fmt::format("      if [[ $cur == -* ]]; then _attnbench_words '{}'",
                      join(option_names(command), " "));
  if (const Option* argument = last_argument(command)) {
    text += fmt::format("\n      else {}", bash_action(*argument));
  }
  return text + "\n      fi ;;\n";
}

constexpr const char* kBashHelpers = R"(_attnbench_words() {
  local IFS=$' \t\n' word
  for word in $(compgen -W "$1" -- "$cur"); do COMPREPLY+=("$word"); done
}
_attnbench_paths() {
  local path
  compopt -o filenames 2>/dev/null
  while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$cur")
}
)";

std::string zsh_quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

/// Of a description or a message, where brackets and colons have a meaning.
std::string zsh_escaped(std::string text) {
  for (const char* special : {"\\", "[", "]", ":"}) {
    text = replaced(text, special, std::string("\\") + special);
  }
  return text;
}

std::string zsh_action(const Option& option) {
  switch (completes(option)) {
    case Completes::kChoices:
      return fmt::format("({})", join(option.choices, " "));
    case Completes::kFiles:
      return "_files";
    case Completes::kFolders:
      return "_files -/";
    case Completes::kScenarios:
      return "_attnbench_scenarios";
    case Completes::kBackends:
      return "_attnbench_backends";
    case Completes::kNothing:
      return " ";
  }
  return " ";
}

/// One specification of _arguments for every spelling of an option.
std::string zsh_option(const Option& option) {
  if (is_argument(option)) {
    const char* const many = is_repeatable(option) ? "*" : "";
    return fmt::format("        {}", zsh_quoted(fmt::format("{}:{}:{}", many, long_name(option),
                                                            zsh_action(option))));
  }
  std::vector<std::string> lines;
  for (const std::string& name : spellings(option)) {
    std::string text = fmt::format("{}{}[{}]", is_repeatable(option) ? "*" : "", name,
                                   zsh_escaped(with_trailing_space_cut(short_help(option))));
    if (has_value(option)) {
      const std::string value = option.value.empty() ? "TEXT" : option.value;
      text += fmt::format(":{}:{}", zsh_escaped(value), zsh_action(option));
    }
    lines.push_back("        " + zsh_quoted(text));
  }
  return join(lines, " \\\n");
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_action(const Option& option) {
  switch (completes(option)) {
    case Completes::kChoices:
      return fmt::format(" -xa '{}'", join(option.choices, " "));
    case Completes::kFiles:
      return " -rF";
    case Completes::kFolders:
      return " -xa '(__fish_complete_directories)'";
    case Completes::kScenarios:
      return " -rFa '(attnbench list scenarios --names 2>/dev/null)'";
    case Completes::kBackends:
      return " -xa '(attnbench list backends --names 2>/dev/null)'";
    case Completes::kNothing:
      return " -x";
  }
  return "";
}

std::string fish_option(const DescribedCommand& command, const Option& option) {
  std::string text =
      fmt::format("complete -c attnbench -n '__fish_seen_subcommand_from {}'", command.name);
  if (is_argument(option)) {
    const std::string action = fish_action(option);
    // Why without r or x: they are about the value of an option, and this is none.
    if (completes(option) == Completes::kChoices) return text + " -f" + action.substr(2) + "\n";
    const std::size_t list = action.find("a '");
    return text + " -F" + (list == std::string::npos ? "" : " -" + action.substr(list)) + "\n";
  }
  for (const std::string& name : spellings(option)) {
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (has_value(option)) text += fish_action(option);
  return text + " -d " + fish_quoted(with_trailing_space_cut(short_help(option))) + "\n";
}

/// Text of man(7): no character that would be markup.
std::string roff(const std::string& text) {
  std::string result = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  if (result.starts_with(".") || result.starts_with("'")) result.insert(0, "\\&");
  return replaced(result, "\n.", "\n\\&.");
}

std::string man_option(const Option& option) {
  std::string names;
  for (const std::string& name : spellings(option)) {
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
  }
  if (has_value(option)) {
    names += fmt::format(" \\fI{}\\fR", roff(option.value.empty() ? "TEXT" : option.value));
  }
  std::string text = fmt::format(".TP\n{}\n{}", names, roff(option.help));
  const auto is_shown = [&] { return option.shows_default && !option.defaults.empty(); };
  if (!option.choices.empty() && !option.takes_others) {
    text += fmt::format(" (one of {})", roff(join(option.choices, ", ")));
  }
  if (is_shown()) text += fmt::format(" [default: {}]", roff(join(option.defaults, " ")));
  return text + "\n";
}

std::string man_synopsis(const DescribedCommand& command) {
  std::string text = fmt::format("\\fBattnbench {}\\fR [\\fIOPTIONS\\fR]", roff(command.name));
  for (const Option& option : command.options) {
    if (!is_argument(option)) continue;
    const std::string name = roff(option.value.empty() ? option.names : option.value) +
                             (is_repeatable(option) ? "..." : "");
    text += option.required ? fmt::format(" \\fI{}\\fR", name) : fmt::format(" [\\fI{}\\fR]", name);
  }
  return text;
}

/// Options under the headings that --help has.
std::string man_command(const DescribedCommand& command) {
  std::string text = fmt::format(".SS {}\n{}\n.PP\n{}.\n", roff(command.name),
                                 man_synopsis(command), roff(command.summary));
  std::vector<std::string> groups;
  for (const Option& option : command.options) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  for (const std::string& group : groups) {
    if (!group.empty()) text += fmt::format(".PP\n\\fI{}\\fR\n", roff(group));
    for (const Option& option : command.options) {
      if (option.group == group) text += man_option(option);
    }
  }
  return text + fmt::format(".PP\nExample:\n.PP\n.nf\n{}\n.fi\n", roff(command.example));
}

constexpr const char* kExitStatus = R"(.SH EXIT STATUS
.TP
.B 0
Everything that ran passed.
.TP
.B 1
A wrong or implausible result, or a regression.
.TP
.B 2
Bad usage, or unreadable or invalid input.
.TP
.B 3
Nothing ran: all unsupported or filtered out.
.TP
.B 4
A CUDA, memory or internal error, or an interruption.
)";

}  // namespace

std::string bash_completion(const DescribedProgram& program) {
  std::string text =
      fmt::format("# bash completion of {}, generated by 'attnbench completion'.\n", program.name);
  text += kBashHelpers;
  text +=
      "_attnbench() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word\n"
      "  COMPREPLY=()\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    if [[ $word != -* ]]; then command=$word; break; fi\n"
      "  done\n"
      "  case $command in\n";
  const std::string commands = join(command_names(program), " ");
  text += fmt::format("    '') _attnbench_words '{} --help --version' ;;\n", commands);
  text += fmt::format("    help) _attnbench_words '{}' ;;\n", commands);
  for (const DescribedCommand& command : program.commands) text += bash_command(command);
  return text + "  esac\n}\ncomplete -F _attnbench attnbench\n";
}

std::string zsh_completion(const DescribedProgram& program) {
  std::string text =
      "#compdef attnbench\n"
      "# Generated by 'attnbench completion'.\n"
      "_attnbench_scenarios() {\n"
      "  compadd -- ${(f)\"$(attnbench list scenarios --names 2>/dev/null)\"}\n"
      "  _files\n"
      "}\n"
      "_attnbench_backends() {\n"
      "  compadd -- ${(f)\"$(attnbench list backends --names 2>/dev/null)\"}\n"
      "}\n"
      "_attnbench() {\n"
      "  local -a commands=(\n";
  for (const DescribedCommand& command : program.commands) {
    text += "    " + zsh_quoted(command.name + ":" + zsh_escaped(command.summary)) + "\n";
  }
  text +=
      "    'help:Show the help of a command'\n"
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    compadd -- --help --version\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $words[1] in\n"
      "    help) _describe command commands ;;\n";
  for (const DescribedCommand& command : program.commands) {
    std::vector<std::string> lines;
    for (const Option& option : command.options) lines.push_back(zsh_option(option));
    text += fmt::format("    {})\n      _arguments -s -S \\\n{} ;;\n", command.name,
                        join(lines, " \\\n"));
  }
  return text +
         "  esac\n"
         "}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
         "  _attnbench \"$@\"\n"
         "else\n"
         "  compdef _attnbench attnbench\n"
         "fi\n";
}

std::string fish_completion(const DescribedProgram& program) {
  std::string text =
      "# fish completion of attnbench, generated by 'attnbench completion'.\n"
      "complete -c attnbench -f\n"
      "complete -c attnbench -n __fish_use_subcommand -l help -d 'Print help'\n"
      "complete -c attnbench -n __fish_use_subcommand -l version -d 'Print the version'\n";
  for (const DescribedCommand& command : program.commands) {
    text += fmt::format("complete -c attnbench -n __fish_use_subcommand -a {} -d {}\n",
                        command.name, fish_quoted(command.summary));
  }
  text += fmt::format(
      "complete -c attnbench -n __fish_use_subcommand -a help -d 'Show the help of a command'\n"
      "complete -c attnbench -n '__fish_seen_subcommand_from help' -a '{}'\n",
      join(command_names(program), " "));
  for (const DescribedCommand& command : program.commands) {
    for (const Option& option : command.options) text += fish_option(command, option);
  }
  return text;
}

std::string manual_page(const DescribedProgram& program) {
  std::string text = fmt::format(
      ".TH ATTNBENCH 1 \"\" \"attnbench {}\" \"User Commands\"\n"
      ".SH NAME\nattnbench \\- {}\n"
      ".SH SYNOPSIS\n\\fBattnbench\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]\n"
      ".br\n\\fBattnbench help\\fR [\\fICOMMAND\\fR]\n"
      ".SH DESCRIPTION\n"
      "A scenario describes the attention of a real serving step: batch, head sizes, masks, KV "
      "cache.\nattnbench runs attention backends on it, compares each with a float64 reference, "
      "and reports\nerror and throughput.\n"
      ".SH COMMANDS\n",
      program.version, roff(program.description));
  for (const DescribedCommand& command : program.commands) text += man_command(command);
  return text + kExitStatus;
}

}  // namespace attnbench
