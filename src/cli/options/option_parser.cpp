#include "cli/options/option_parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <type_traits>
#include <utility>

#include "cli/terminal/console.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/parsing.h"

namespace attnbench {
namespace {

/// Help whose descriptions go on below themselves on a narrow terminal.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* command) const override {
    return wrapped(CLI::Formatter::make_description(command), 0);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    std::stringstream text;
    CLI::detail::format_help(text, command->get_display_name(true),
                             wrapped(command->get_description(), get_column_width()),
                             get_column_width());
    return text.str();
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option), get_column_width());
  }

 private:
  /// A text from `column` on, its lines without the spaces before them: CLI11 writes those.
  static std::string wrapped(const std::string& text, std::size_t column) {
    return hang(text, column, static_cast<std::size_t>(output_width(STDOUT_FILENO)), 0);
  }
};

/// False for digits that no 64 bits hold, which CLI11 would make the largest number that they do.
bool fits_int64(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error != std::errc::result_out_of_range || text.starts_with('-');
}

/// Why not CLI::Range: it takes "nan", which is neither below nor above anything.
std::string check_number(const NumberRange& range, const std::string& text) {
  double value = 0;
  if (range.whole && !fits_int64(text)) {
    return fmt::format("expected at most {}, found {}", std::numeric_limits<std::int64_t>::max(),
                       text);
  }
  const bool fits = CLI::detail::lexical_cast(text, value) && value >= range.least &&
                    value <= range.most && (!range.whole || value == std::floor(value));
  return fits ? "" : fmt::format("expected {}, found {}", range.expected, text);
}

void add_number_check(const NumberRange& range, CLI::Option& option) {
  option.check([range](const std::string& text) { return check_number(range, text); });
}

/// Why not CLI::IsMember: its message has no nearest choice.
void add_choice_check(const std::vector<std::string>& choices, CLI::Option& option) {
  option.check([choices](const std::string& text) -> std::string {
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return "";
    return fmt::format("expected one of {}, found '{}'{}", fmt::join(choices, ", "), text,
                       did_you_mean(text, choices));
  });
}

/// Why: a variable of a script that is not set would lose the results that were to be kept.
void add_path_check(CLI::Option& option) {
  option.check([](const std::string& text) -> std::string {
    return text.empty() ? "expected a path, found ''" : "";
  });
}

/// An option that converts to the type of its target. CLI11 refuses words that do not convert.
CLI::Option* add_target(const Option& row, CLI::App& app) {
  return std::visit(
      [&](auto* target) {
        using Target = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<Target, bool>) {
          return app.add_flag(row.names, *target, row.help);
        } else {
          return app.add_option(row.names, *target, row.help);
        }
      },
      row.target);
}

/// Everything of a row but what only this program uses: `repeat` and the defaults.
CLI::Option* add_row(const Option& row, CLI::App& app) {
  CLI::Option* option = add_target(row, app);
  const bool is_list = std::holds_alternative<std::vector<std::string>*>(row.target);
  if (!row.value.empty()) option->type_name(row.value);
  if (!row.group.empty()) option->group(row.group);
  if (row.required) option->required();
  if (row.shows_default) option->capture_default_str();
  // Why: otherwise a repeatable option takes the argument after it as well.
  if (is_list && !is_argument(row) && !row.takes_several) option->allow_extra_args(false);
  if (row.delimiter != '\0') option->delimiter(row.delimiter);
  if (row.numbers) add_number_check(*row.numbers, *option);
  const bool is_option = !is_argument(row);
  if (is_option && (row.value == "FILE" || row.value == "DIR")) add_path_check(*option);
  if (!row.choices.empty() && !row.takes_others) add_choice_check(row.choices, *option);
  if (!row.excludes.empty()) option->excludes(app.get_option(row.excludes));
  if (!row.needs.empty()) option->needs(app.get_option(row.needs));
  return option;
}

/// A command as CLI11 holds it, with its options by row.
struct DeclaredCommand {
  CLI::App* app = nullptr;
  std::vector<CLI::Option*> options;
};

DeclaredCommand declare(const CommandSyntax& command, CLI::App& program) {
  DeclaredCommand declared;
  declared.app = program.add_subcommand(command.name, command.summary);
  declared.app->footer(command.footer);
  for (const Option& row : command.options.rows()) {
    declared.options.push_back(add_row(row, *declared.app));
  }
  return declared;
}

/// The chosen command, whose given rows are noted.
std::optional<std::size_t> chosen_command(const std::vector<DeclaredCommand>& declared,
                                          ProgramSyntax& program) {
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (!declared[i].app->parsed()) continue;
    for (std::size_t row = 0; row < declared[i].options.size(); ++row) {
      if (declared[i].options[row]->count() > 0) program.commands[i].options.set_given(row);
    }
    return i;
  }
  return std::nullopt;
}

/// "--samples: expected N, found none" in place of "--samples: 1 required N missing".
std::string missing_value(const std::string& message) {
  const Pattern missing(R"(([^:]+): \d+ required (.+) missing)");
  const Pattern::Groups match = missing.match(message);
  if (match.empty()) return message;
  return fmt::format("{}: expected {}, found none", match[1], match[2]);
}

/// What is wrong with a line. Of a word that looks like an option and is none the nearest one is
/// told, and of other words too many the first; what else is wrong CLI11 says itself.
std::string message_of(const CLI::ParseError& error, const CLI::App& command) {
  const std::vector<std::string> unknown = command.remaining();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || unknown.empty()) {
    return missing_value(error.what());
  }
  const auto word = std::find_if(unknown.begin(), unknown.end(), [](const std::string& text) {
    return text.size() > 1 && text[0] == '-';
  });
  if (word == unknown.end()) return fmt::format("unexpected argument '{}'", unknown.front());
  // Of one letter every other letter is as near.
  if (!word->starts_with("--")) return fmt::format("unknown option '{}'", *word);
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string name = word->substr(0, word->find('='));
  return fmt::format("unknown option '{}'{}", name, did_you_mean(name, names));
}

}  // namespace

// Help and version are exceptions in CLI11, as errors are.
ParsedLine parse_line(ProgramSyntax& program, const std::vector<std::string>& words) {
  CLI::App app(program.description);
  app.name(program.name);
  app.formatter(std::make_shared<HelpFormatter>());  // of the commands too
  app.footer(program.footer);
  app.set_help_flag(help_option().names, help_option().help);
  app.set_version_flag("-V,--version", program.version);
  app.require_subcommand(1);
  std::vector<DeclaredCommand> declared;
  for (const CommandSyntax& command : program.commands) declared.push_back(declare(command, app));

  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::CallForVersion& version) {
    return {fmt::format("{}\n", version.what()), std::nullopt};
  } catch (const CLI::CallForHelp&) {
    return {app.help(), std::nullopt};  // of the chosen command, under its full name
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const CLI::App& command = chosen.empty() ? app : *chosen.front();
    const std::string message = message_of(error, command);
    fail(ErrorKind::kUsage, "{}{} 'attnbench {}--help'", message,
         message.ends_with('?') ? " See" : "; see", chosen.empty() ? "" : command.get_name() + " ");
  }
  return {"", chosen_command(declared, program)};
}

}  // namespace attnbench
