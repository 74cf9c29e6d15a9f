#include "bench/memo.h"

#include <doctest/doctest.h>

#include <string>

namespace attnbench {

TEST_CASE("a value is computed once for its key and stays where it is") {
  Memo<int, std::string> memo;
  int made = 0;
  const auto make = [&] { return std::string("value ") + std::to_string(++made); };
  const std::string* first = memo.get(1, make);
  for (int key = 2; key < 200; ++key) memo.get(key, make);
  CHECK(memo.get(1, make) == first);
  CHECK(*first == "value 1");
  CHECK(made == 199);
  memo.clear();
  CHECK(*memo.get(1, make) == "value 200");
}

TEST_CASE("a computation that gave nothing is tried again") {
  Memo<int, int> memo;
  std::optional<int> next;
  const auto make = [&] { return next; };
  CHECK(memo.get(1, make) == nullptr);
  next = 7;
  REQUIRE(memo.get(1, make) != nullptr);
  next.reset();
  CHECK(*memo.get(1, make) == 7);
}

}  // namespace attnbench
