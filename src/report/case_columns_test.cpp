#include "report/case_columns.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace attnbench {
namespace {

Result case_of(const std::string& name, const std::string& kv_dtype, int block_size,
               const std::string& scenario = "s") {
  Result result;
  result.scenario = scenario;
  result.case_name = name;
  result.problem_json =
      fmt::format(R"({{"kv_cache":{{"dtype":"{}","block_size":{},"num_blocks":{}}}}})", kv_dtype,
                  block_size, 4096 / block_size);
  return result;
}

std::vector<std::string> titles_of(const std::vector<CaseColumn>& columns) {
  std::vector<std::string> titles;
  for (const CaseColumn& column : columns) titles.push_back(column.title);
  return titles;
}

}  // namespace

TEST_CASE("swept keys are columns behind the batch, with the values of the resolved problem") {
  const auto columns =
      case_columns({case_of("q8,kv_cache.block_size=16,kv_cache.dtype=auto", "auto", 16),
                    case_of("q8,kv_cache.block_size=16,kv_cache.dtype=fp8", "fp8_e4m3", 16)});
  CHECK(titles_of(columns) == std::vector<std::string>{"batch", "kv.block_size", "kv.dtype"});
  CHECK(columns[2].key == "kv_cache.dtype");
  CHECK(columns[2].values == std::vector<std::string>{"auto", "fp8_e4m3"});
  CHECK(columns[2].varies);
  CHECK_FALSE(columns[0].varies);
  CHECK_FALSE(columns[1].varies);
  CHECK(case_label(columns, 1, true) == "kv.dtype=fp8_e4m3");
  CHECK(case_label(columns, 1, false) == "q8, kv.block_size=16, kv.dtype=fp8_e4m3");
}

TEST_CASE("without a swept key there are no columns, and a case keeps its name") {
  CHECK(case_columns({case_of("q8", "auto", 16), case_of("q16", "auto", 32)}).empty());
  CHECK(case_columns({}).empty());
}

TEST_CASE("names that are too long to hold their keys still have them as columns") {
  const std::string kept(100, 'x');
  const auto columns = case_columns(
      {case_of(kept + "-00000001", "auto", 16), case_of(kept + "-00000002", "auto", 32)});
  // num_blocks follows from the block size.
  CHECK(titles_of(columns) == std::vector<std::string>{"batch", "kv.block_size"});
}

TEST_CASE("a repeated name keeps the number that tells it apart") {
  const auto columns = case_columns({case_of("q8,kv_cache.dtype=auto", "auto", 16),
                                     case_of("q8,kv_cache.dtype=auto#2", "auto", 16)});
  CHECK(columns[0].values == std::vector<std::string>{"q8", "q8#2"});
}

TEST_CASE("a key is as short as it may be") {
  CHECK(short_key("kv_cache.block_size") == "kv.block_size");
  CHECK(short_key("kv_cache.dtype") == "kv.dtype");
  CHECK(short_key("attention.dtype") == "attn.dtype");
  CHECK(short_key("output_quant.type") == "out.type");
  CHECK(short_key("no.such.key") == "key");
}

TEST_CASE("a whole number is written as in the name of its case") {
  Result capped;
  capped.case_name = "q8,attention.logits_soft_cap=30,kv_cache.k_scale=0.0001";
  capped.problem_json = R"({"attention":{"logits_soft_cap":30.0},"kv_cache":{"k_scale":0.0001}})";
  const auto columns = case_columns({capped});
  REQUIRE(columns.size() == 3);
  CHECK(columns[1].values == std::vector<std::string>{"30"});
  CHECK(columns[2].values == std::vector<std::string>{"0.0001"});
}

TEST_CASE("a problem that cannot be read has no values") {
  Result foreign;
  foreign.case_name = "q8,kv_cache.dtype=fp8";
  foreign.problem_json = "none";
  const auto columns = case_columns({foreign});
  REQUIRE(columns.size() == 2);
  CHECK(columns[1].values == std::vector<std::string>{""});
}

}  // namespace attnbench
