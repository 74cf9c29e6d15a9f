#include "core/system/csv.h"

#include <doctest/doctest.h>

#include <cmath>

namespace attnbench {
namespace {

using Fields = std::vector<std::string>;

TEST_CASE("fields in quotes hold commas, line ends and doubled quotes") {
  const std::string text = "a,\"b,\"\"c\"\"\n\",\"\"\r\n\nlast,";
  std::size_t at = 0;
  CHECK(read_csv_fields(text, at).value() == Fields{"a", "b,\"c\"\n", ""});
  CHECK(read_csv_fields(text, at).value() == Fields{""});
  CHECK(read_csv_fields(text, at).value() == Fields{"last", ""});
  CHECK(at == text.size());
}

TEST_CASE("a quoted field that does not end gives nothing") {
  std::size_t at = 0;
  CHECK_FALSE(read_csv_fields("a,\"b\"\"\n", at).has_value());
}

TEST_CASE("a table has texts and numbers by column") {
  const CsvTable table = parse_csv("name,ms\n\"a,b\",2.5\n\nc,\n", "t.csv");
  REQUIRE(table.rows.size() == 2);
  CHECK(table.text(0, "name") == "a,b");
  CHECK(table.number(0, "ms") == 2.5);
  CHECK(std::isnan(table.number(1, "ms")));
  CHECK_FALSE(table.has("us"));
  CHECK_THROWS_WITH(static_cast<void>(table.number(0, "name")),
                    "t.csv: row 1: name: expected a number, found 'a,b'");
  CHECK_THROWS_WITH(static_cast<void>(parse_csv("a,b\n1\n", "t.csv")),
                    "t.csv: row 1: expected 2 fields, found 1");
}

}  // namespace
}  // namespace attnbench
