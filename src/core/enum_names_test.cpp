#include "core/enum_names.h"

#include <doctest/doctest.h>

#include <string>

#include "core/error.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {
namespace {

enum class Fruit { kApple, kPear, k2Cherries };
using Row = EnumRow<Fruit>;

template <typename Enum>
void check_table() {
  for (const auto& row : enum_rows(Enum{})) {
    CAPTURE(row.name);
    CHECK(to_string(row.value) == std::string(row.name));
    CHECK(enum_from_name<Enum>(row.name) == row.value);
    CHECK_FALSE(std::string(row.doc).empty());
  }
  const auto beyond = static_cast<Enum>(enum_rows(Enum{}).size());
  CHECK(std::string(to_string(beyond)).empty());
  CHECK_FALSE(enum_from_name<Enum>("no such name").has_value());
  CHECK_FALSE(enum_from_name<Enum>("").has_value());
}

template <typename... Enums>
void check_tables() {
  (check_table<Enums>(), ...);
}

}  // namespace

TEST_CASE("the compiler tells enumerators from other numbers") {
  CHECK(is_enumerator<Fruit::kApple>());
  CHECK(is_enumerator<static_cast<Fruit>(2)>());
  CHECK_FALSE(is_enumerator<static_cast<Fruit>(3)>());
  CHECK_FALSE(is_enumerator<static_cast<Fruit>(-1)>());
}

TEST_CASE("a table of names has every value of its enum once and in order") {
  const Row whole[] = {
      {Fruit::kApple, "apple", ""}, {Fruit::kPear, "pear", ""}, {Fruit::k2Cherries, "two", ""}};
  CHECK(table_fault(whole) == "");

  const Row short_by_one[] = {{Fruit::kApple, "apple", ""}, {Fruit::kPear, "pear", ""}};
  CHECK(table_fault(short_by_one) == "the last enumerators are missing");

  const Row without_pear[] = {{Fruit::kApple, "apple", ""}, {Fruit::k2Cherries, "two", ""}};
  CHECK(table_fault(without_pear) == "not in the order of the enumerators");

  const Row one_name[] = {
      {Fruit::kApple, "apple", ""}, {Fruit::kPear, "apple", ""}, {Fruit::k2Cherries, "two", ""}};
  CHECK(table_fault(one_name) == "two rows have one name");
}

TEST_CASE("every name of a choice stands for its value, and every value says what it means") {
  check_tables<AttentionType, QueryDtype, ProbabilityDtype, Fp8Accumulation, EncoderWindow,
               AlibiKind, TritonPath, SplitForm, KvCacheDtype, CacheLayout, PthInt8Round,
               CascadeMode, DcpComm, DcpTransport, OutputQuantType, Distribution, L2Mode,
               TimingMode, TimingOrder, Switch, MlaRefForm, SparseIndices, MmAttnDtype, AmaxKind,
               OpKind, OpCacheLayout, RopePairs, CosSinDtype, LseBase, Status, VerdictKind,
               ErrorKind>();
}

}  // namespace attnbench
