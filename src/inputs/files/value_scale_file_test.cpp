#include "inputs/files/value_scale_file.h"
#include "core/error.h"
#include "core/test_folder.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "metadata/mask/kernel_rules_testing.h"

#include <doctest/doctest.h>

#include <limits>

namespace attnbench {
namespace {

Problem problem_with(const std::string& path) {
  Problem problem;
  problem.attention.num_heads = problem.attention.num_kv_heads = 2;
  problem.attention.head_size = problem.attention.v_head_size = 3;
  problem.kv_cache.int8_level = 1;
  problem.kv_cache.value_scale_file = path;
  problem.kv_cache.num_blocks = 4;
  problem.batch = {{2, 4}};
  return problem;
}

ValueScales read(const std::string& text) {
  const TestFolder folder;
  return read_value_scales(problem_with(folder.write("s.json", text)));
}

std::string document(const std::string& layers) {
  return R"({"version": 1, "num_kv_heads": 2, "head_size": 3, "layers": {)" + layers + "}}";
}

ErrorKind kind_of_error(const std::string& text) {
  try {
    read(text);
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("no error: ", text);
  return ErrorKind::kInternal;
}

const char* const kRows = "[[0.5, 1, 2], [3, 4, 5e-3]]";

}  // namespace

TEST_CASE("a value scale file gives one scale a head and channel") {
  const ValueScales scales = read(document(std::string(R"("a": )") + kRows));
  CHECK(scales.scale == std::vector<float>{0.5f, 1, 2, 3, 4, 5e-3f});
  CHECK(scales.notices.empty());
}

TEST_CASE("of several layers the first in natural order is used, with a notice") {
  const ValueScales scales =
      read(document(std::string(R"("layers.10": [[9, 9, 9], [9, 9, 9]], "layers.9": )") + kRows));
  CHECK(scales.scale.front() == 0.5f);
  REQUIRE(scales.notices.size() == 1);
  CHECK(scales.notices[0].find("layers.9") != std::string::npos);
}

TEST_CASE("a scale of zero becomes one with a warning") {
  const ValueScales scales = read(document(R"("a": [[0, 1, 2], [3, 4, 0.0]])"));
  CHECK(scales.scale == std::vector<float>{1, 1, 2, 3, 4, 1});
  REQUIRE(scales.notices.size() == 1);
  CHECK(scales.notices[0].find("warning") != std::string::npos);
}

TEST_CASE("value scale files of another shape are E-SHAPE") {
  for (const char* text :
       {R"({"version": 1, "num_kv_heads": 4, "head_size": 3, "layers": {"a": [[1]]}})",
        R"({"version": 1, "num_kv_heads": 2, "head_size": 8, "layers": {"a": [[1]]}})"}) {
    CHECK(kind_of_error(text) == ErrorKind::kShape);
  }
  for (const char* layers : {R"("a": [[1, 2, 3]])", R"("a": [[1, 2, 3], [1, 2]])", R"("a": 7)",
                             R"("a": [[1, 2, 3], 4])"}) {
    CHECK(kind_of_error(document(layers)) == ErrorKind::kShape);
  }
}

TEST_CASE("scales that are negative or not finite in float32 are E-VALUE and name their layer") {
  const std::string good = std::string(R"("a": )") + kRows;
  for (const char* row :
       {"[-1, 2, 3]", "[1e39, 2, 3]", "[1, NaN, 3]", "[1, 2, -Infinity]", "[1, 2, 1e999]"}) {
    CAPTURE(row);
    const std::string text = document(good + ", \"b\": [[1, 1, 1], " + row + "]");
    CHECK(kind_of_error(text) == ErrorKind::kValue);
    CHECK_THROWS_WITH_AS(read(text), doctest::Contains("'b'"), Error);
  }
}

TEST_CASE("value scale files that are none are E-FORMAT, a missing one E-IO") {
  const std::string twice = document(std::string(R"("a": )") + kRows + R"(, "a": )" + kRows);
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string(200000, '['),
        std::string(R"({"version": 2, "num_kv_heads": 2, "head_size": 3, "layers": {}})"),
        std::string(R"({"num_kv_heads": 2, "head_size": 3, "layers": {}})"), document(""),
        document(R"("a": [[1, 2, "x"], [1, 2, 3]])"), document(R"("a": [[1, 2, true], [1, 2, 3]])"),
        document(R"("a": [[1, 2, []], [1, 2, 3]])"), twice}) {
    CAPTURE(text.substr(0, 80));
    CHECK(kind_of_error(text) == ErrorKind::kFormat);
  }
  try {
    read_value_scales(problem_with("/nonexistent/scales.json"));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kIo);
  }
}

TEST_CASE("scales of a file are what the inputs carry and what the values are stored with") {
  const TestFolder folder;
  const Problem problem =
      problem_with(folder.write("s.json", document(std::string(R"("a": )") + kRows)));
  const AttentionInputs inputs = make_inputs(problem);
  CHECK(inputs.value_channel_scale == std::vector<float>{0.5f, 1, 2, 3, 4, 5e-3f});
  const StoredKv stored = store_kv(inputs, resolve_store_rule(problem, kFlashIxRules));
  for (std::int64_t i = 0; i < stored.value_codes.num_elements(); ++i) {
    CHECK(stored.value_dequantized.at(i) ==
          stored.value_codes.at(i) * inputs.value_channel_scale[static_cast<std::size_t>(i % 6)]);
  }
}

TEST_CASE("scales from values are the largest magnitude over 127, and 1 for channels of zeros") {
  const Tensor value = Tensor::from_f32(std::vector<float>{1, 0, -3, 0, 2, -5, 0, 1}, {2, 2, 2});
  const ValueScales scales = make_value_scales(value);
  CHECK(scales.scale == std::vector<float>{2 / 127.0f, 5 / 127.0f, 3 / 127.0f, 1 / 127.0f});
  CHECK(scales.notices.empty());
  const ValueScales zeros =
      make_value_scales(Tensor::from_f32(std::vector<float>{0, 1}, {1, 1, 2}));
  CHECK(zeros.scale[0] == 1.0f);
  CHECK(zeros.notices.size() == 1);
  const float inf = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(make_value_scales(Tensor::from_f32(std::vector<float>{inf, 1}, {1, 1, 2})),
                  Error);
}

}  // namespace attnbench
