#include "cli/options/option_table.h"

#include <doctest/doctest.h>

#include "core/error.h"

namespace attnbench {
namespace {

/// A variable of every kind that an option may set, with defaults that are not all empty.
struct Values {
  bool flag = false;
  int threads = 0;
  double margin = 1.5;
  std::optional<int> samples;
  std::optional<double> timeout;
  std::string device = "auto";
  std::vector<std::string> backends;
  std::vector<std::string> plugins;
};

OptionTable table_of(Values& values) {
  OptionTable table;
  table.add({.names = "--threads", .target = &values.threads, .repeat = Repeat::kLast});
  table.add({.names = "-f,--flag", .target = &values.flag, .repeat = Repeat::kInOrder});
  table.add({.names = "--margin", .target = &values.margin, .repeat = Repeat::kInOrder});
  table.add({.names = "--samples", .target = &values.samples, .repeat = Repeat::kInOrder});
  table.add({.names = "--timeout", .target = &values.timeout});
  table.add({.names = "--device", .target = &values.device, .repeat = Repeat::kInOrder});
  table.add({.names = "--backend", .target = &values.backends, .repeat = Repeat::kInOrder});
  table.add({.names = "--plugin", .target = &values.plugins, .repeat = Repeat::kFirst});
  return table;
}

}  // namespace

TEST_CASE("nothing has to be repeated of options that are what they are by default") {
  Values values;
  CHECK(table_of(values).repeat_text().empty());
  values.device = "cpu";  // a default is what the target held when the row was added
  CHECK(table_of(values).repeat_text().empty());
}

TEST_CASE("a repeated command has what differs: libraries first, the machine's threads last") {
  Values values;
  const OptionTable table = table_of(values);
  values = {true, 2, 0.25, 30, 2.5, "cuda:1", {"FLASH_ATTN", "python:a:B"}, {"my lib.so"}};
  CHECK(table.repeat_text() ==
        " --plugin 'my lib.so' --flag --margin 0.25 --samples 30 --device cuda:1"
        " --backend FLASH_ATTN --backend python:a:B --threads 2");
}

TEST_CASE("a row is known by its long name") {
  Values values;
  OptionTable table = table_of(values);
  CHECK_FALSE(table.is_given("--flag"));
  table.set_given(1);
  CHECK(table.is_given("--flag"));
  CHECK_FALSE(table.is_given("--threads"));
  CHECK_THROWS_AS(table.is_given("--flags"), Error);
  CHECK(long_name(table.rows()[1]) == "--flag");
  CHECK(is_flag(table.rows()[1]));
  CHECK_FALSE(is_flag(table.rows()[0]));
  CHECK_FALSE(is_argument(table.rows()[0]));
  CHECK(is_argument({.names = "SCENARIO"}));
}

TEST_CASE("a row keeps its default in words") {
  Values values;
  const OptionTable table = table_of(values);
  CHECK(table.rows()[0].defaults == std::vector<std::string>{"0"});
  CHECK(table.rows()[1].defaults.empty());
  CHECK(table.rows()[2].defaults == std::vector<std::string>{"1.5"});
  CHECK(table.rows()[3].defaults.empty());
  CHECK(table.rows()[5].defaults == std::vector<std::string>{"auto"});
}

}  // namespace attnbench
