#include "cli/options/option_parser.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench::option_parser_test {
namespace {

/// A program with the commands "one", which has an option of every kind, and "two".
struct Sample {
  bool quiet = false;
  bool verbose = false;
  std::optional<int> samples;
  std::optional<std::int64_t> seed;
  double share = 0.5;
  std::string when = "auto";
  std::string place = "here";
  std::vector<std::string> names;
  std::vector<std::string> files;
  std::vector<std::string> layers;
  std::vector<std::string> rest;
  ProgramSyntax program{"prog", "prog - a sample", "Example: none", "prog 1.2", {}};

  Sample() {
    program.commands.push_back({"one", "The first", "Example: one", {}});
    program.commands.push_back({"two", "The second", "Example: two", {}});
    OptionTable& options = program.commands[0].options;
    options.add({.names = "WORD", .help = "Words", .target = &rest});
    options.add({.names = "-q,--quiet", .help = "Say less", .target = &quiet});
    options.add({.names = "--verbose", .target = &verbose, .excludes = "--quiet"});
    options.add({.names = "--samples", .target = &samples, .numbers = whole_numbers(1, 9)});
    options.add({.names = "--seed", .target = &seed, .numbers = numbers_from_zero()});
    options.add({.names = "--share",
                 .value = "S",
                 .group = "Numbers",
                 .target = &share,
                 .shows_default = true,
                 .numbers = number_between(0, 1)});
    options.add({.names = "--when", .target = &when, .choices = {"auto", "never"}});
    options.add({.names = "--place",
                 .target = &place,
                 .choices = {"here"},
                 .takes_others = true,
                 .needs = "--when"});
    options.add({.names = "--name", .target = &names});
    options.add({.names = "--files", .target = &files, .takes_several = true});
    options.add({.names = "--layers", .target = &layers, .takes_several = true, .delimiter = ','});
  }

  ParsedLine parse(std::vector<std::string> words) {
    words.insert(words.begin(), {"prog", "one"});
    return parse_line(program, words);
  }
  std::string refusal(const std::vector<std::string>& words) {
    try {
      parse(words);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kUsage);
      return error.what();
    }
    return "taken";
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("values go to the variables of the chosen command's rows") {
  Sample sample;
  const ParsedLine line = sample.parse({"--samples", "3", "--seed=12", "--share", "0.25", "-q"});
  CHECK(line.answer.empty());
  CHECK(line.command == 0);
  CHECK(sample.samples == 3);
  CHECK(sample.seed == 12);
  CHECK(sample.share == 0.25);
  CHECK(sample.quiet);
  const OptionTable& options = sample.program.commands[0].options;
  CHECK(options.is_given("--quiet"));
  CHECK_FALSE(options.is_given("--verbose"));
}

TEST_CASE("an option that may be repeated leaves the argument behind it, one of several does not") {
  Sample sample;
  sample.parse({"--name", "a", "w1", "--name", "b", "--layers", "x,y", "z"});
  CHECK(sample.names == Words{"a", "b"});
  CHECK(sample.rest == Words{"w1"});
  CHECK(sample.layers == Words{"x", "y", "z"});
  Sample other;
  other.parse({"w1", "--files", "a", "b,c"});
  CHECK(other.files == Words{"a", "b,c"});
  CHECK(other.rest == Words{"w1"});
}

TEST_CASE("values outside of a row's range or choices are refused under the option's name") {
  for (const char* samples : {"0", "10", "x", "1.5", ""}) {
    CHECK(contains(Sample().refusal({"--samples", samples}), "--samples"));
  }
  CHECK(contains(Sample().refusal({"--share", "nan"}),
                 "expected a number from 0 to 1, found nan; see 'attnbench one --help'"));
  CHECK(contains(Sample().refusal({"--seed", "-1"}), "--seed"));
  CHECK(
      contains(Sample().refusal({"--when", "nevr"}),
               "expected one of auto, never, found 'nevr'; did you mean 'never'? See 'attnbench"));
  CHECK(Sample().refusal({"--when", "never"}) == "taken");
}

TEST_CASE("an unknown option is refused with the nearest one, where there is one") {
  CHECK(
      contains(Sample().refusal({"--sampels", "3"}),
               "unknown option '--sampels'; did you mean '--samples'? See 'attnbench one --help'"));
  CHECK(contains(Sample().refusal({"--sampels=3"}), "did you mean '--samples'?"));
  CHECK(contains(Sample().refusal({"--zzzzzzzz"}),
                 "unknown option '--zzzzzzzz'; see 'attnbench one"));
}

TEST_CASE("choices that are only the usual values do not bind") {
  Sample sample;
  sample.parse({"--when", "never", "--place", "there"});
  CHECK(sample.place == "there");
}

TEST_CASE("rows that exclude or need others are refused by their names") {
  CHECK(contains(Sample().refusal({"-q", "--verbose"}), "excludes --"));
  CHECK(contains(Sample().refusal({"--place", "here"}), "--place requires --when"));
}

TEST_CASE("--help of a command shows its rows, and runs nothing") {
  Sample sample;
  const ParsedLine line = sample.parse({"--help"});
  CHECK_FALSE(line.command.has_value());
  for (const char* part : {"prog one", "-h,--help", "Words", "-q,--quiet", "Say less", "Numbers",
                           "--share S", "0.5", "Example: one"}) {
    CAPTURE(std::string(part));
    CHECK(contains(line.answer, part));
  }
  CHECK_FALSE(contains(line.answer, "Example: two"));
}

TEST_CASE("the program answers --help and --version and wants a command") {
  Sample sample;
  CHECK(contains(parse_line(sample.program, {"prog", "--help"}).answer, "The second"));
  CHECK(parse_line(sample.program, {"prog", "--version"}).answer == "prog 1.2\n");
  CHECK(parse_line(sample.program, {"prog", "two"}).command == 1);
  CHECK_THROWS_AS(parse_line(sample.program, {"prog"}), Error);
  CHECK_THROWS_AS(parse_line(sample.program, {"prog", "three"}), Error);
}

}  // namespace attnbench::option_parser_test
