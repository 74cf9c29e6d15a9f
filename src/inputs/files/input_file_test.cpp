#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "inputs/files/safetensors.h"
#include "inputs/make_inputs.h"
#include "inputs/test_problem.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

/// The tensors of a file that fits small_problem().
Tensors fitting_tensors() {
  const AttentionInputs drawn = make_inputs(small_problem());
  Tensor query(Dtype::kBF16, {26, 4, 8});
  std::memcpy(query.bytes(), drawn.query.bytes(), query.size_bytes());
  return {{"query", query}, {"key", drawn.key}, {"value", drawn.value}};
}

/// make_inputs of `problem` with a file of these tensors.
AttentionInputs load(Problem problem, const Tensors& tensors) {
  const fs::path path =
      fs::temp_directory_path() / fmt::format("input_file_test_{}.safetensors", ::getpid());
  std::vector<std::pair<std::string, const Tensor*>> list;
  for (const auto& [name, tensor] : tensors) list.emplace_back(name, &tensor);
  write_safetensors(path, list, {{"problem", "ignored"}});
  problem.inputs.file = path.string();
  struct Remover {
    const fs::path& file;
    ~Remover() { fs::remove(file); }
  } remover{path};
  return make_inputs(problem);
}

void check_error(const Problem& problem, const Tensors& tensors, ErrorKind kind,
                 const std::string& part) {
  try {
    load(problem, tensors);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
  }
}

Tensor floats(std::vector<float> values, Dtype dtype = Dtype::kF32) {
  return convert(Tensor::from_f32(values), dtype);
}

TEST_CASE("tensors of a file replace the draws bit by bit, others are ignored") {
  Tensors tensors = fitting_tensors();
  tensors["key"].set(5, 1234.0f);
  tensors["output"] = floats({1, 2, 3});
  tensors["kv_cache"] = Tensor(Dtype::kU8, {7});
  const AttentionInputs inputs = load(small_problem(), tensors);
  CHECK(std::memcmp(inputs.key.bytes(), tensors["key"].bytes(), inputs.key.size_bytes()) == 0);
  CHECK(std::memcmp(inputs.query.bytes(), tensors["query"].bytes(),
                    tensors["query"].size_bytes()) == 0);
  CHECK(inputs.query.dim(0) == 29);
  for (std::int64_t i = 26 * 32; i < 29 * 32; ++i) CHECK(std::isnan(inputs.query.at(i)));
  CHECK(inputs.notices.empty());
}

TEST_CASE("a tensor of another floating dtype is rounded with a notice") {
  Tensors tensors = fitting_tensors();
  tensors["value"] = convert(tensors["value"], Dtype::kF32);
  tensors["value"].set(0, 1.0f + 0x1p-20f);
  const AttentionInputs inputs = load(small_problem(), tensors);
  CHECK(inputs.value.dtype() == Dtype::kBF16);
  CHECK(inputs.value.at(0) == 1.0f);
  REQUIRE(inputs.notices.size() == 1);
  CHECK(inputs.notices[0].find("value is float32, rounded to bfloat16") != std::string::npos);
  tensors["value"] = Tensor(Dtype::kI32, {101, 2, 8});
  check_error(small_problem(), tensors, ErrorKind::kDtype, "tensor 'value'");
}

TEST_CASE("a shape that disagrees with the scenario is E-SHAPE with both shapes") {
  Tensors tensors = fitting_tensors();
  tensors["key"] = Tensor(Dtype::kBF16, {101, 4, 4});
  check_error(small_problem(), tensors, ErrorKind::kShape,
              "tensor 'key': expected shape [101, 2, 8], got [101, 4, 4]");
}

TEST_CASE("a missing tensor and a missing file are named") {
  Tensors tensors = fitting_tensors();
  tensors.erase("value");
  check_error(small_problem(), tensors, ErrorKind::kFormat,
              "tensor 'value' [101, 2, 8] is missing");
  Problem problem = small_problem();
  problem.inputs.file = "/nonexistent/x.safetensors";
  try {
    make_inputs(problem);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kIo);
    CHECK(std::string(error.what()).find("/nonexistent/x.safetensors") != std::string::npos);
  }
}

TEST_CASE("lengths in the file must agree with the batch") {
  Tensors tensors = fitting_tensors();
  std::array<std::int32_t, 5> starts{0, 1, 6, 6, 26};
  tensors["query_start_loc"] = Tensor::from_i32(starts);
  const std::array<std::int64_t, 4> lens{33, 48, 0, 20};
  tensors["seq_lens"] = Tensor::from_i64(lens);
  CHECK_NOTHROW(load(small_problem(), tensors));
  starts[2] = 5;
  tensors["query_start_loc"] = Tensor::from_i32(starts);
  check_error(small_problem(), tensors, ErrorKind::kValue,
              "query_start_loc[2] disagrees with the batch: expected 6, got 5");
  tensors["query_start_loc"] = Tensor(Dtype::kI32, {4});
  check_error(small_problem(), tensors, ErrorKind::kShape, "expected shape [5], got [4]");
}

TEST_CASE("sinks of the file are used unless the scenario gives numbers") {
  Tensors tensors = fitting_tensors();
  tensors["sinks"] = floats({1, 2, 3, 4}, Dtype::kBF16);
  Problem problem = small_problem();
  CHECK(load(problem, tensors).sinks == std::vector<float>{1, 2, 3, 4});
  problem.attention.sinks = SinksKind::kNormal;
  CHECK(load(problem, tensors).sinks == std::vector<float>{1, 2, 3, 4});
  problem.attention.sinks = SinksKind::kValues;
  problem.attention.sink_values = {5, 6, 7, 8};
  CHECK(load(problem, tensors).sinks == std::vector<float>{5, 6, 7, 8});
  tensors["sinks"] = floats({1, 2, 3});
  check_error(small_problem(), tensors, ErrorKind::kShape, "tensor 'sinks': expected shape [4]");
}

TEST_CASE("slopes of the file are used with ALiBi, ignored with a notice without") {
  Tensors tensors = fitting_tensors();
  tensors["alibi_slopes"] = floats({1, 2, 3, 4});
  Problem problem = small_problem();
  const AttentionInputs without = load(problem, tensors);
  CHECK(without.alibi_slopes.empty());
  CHECK(without.notices.size() == 1);
  problem.attention.alibi = AlibiKind::kSqrt;
  CHECK(load(problem, tensors).alibi_slopes == std::vector<float>{1, 2, 3, 4});
  problem.attention.alibi_slopes = std::vector<double>{5, 6, 7, 8};
  CHECK(load(problem, tensors).alibi_slopes == std::vector<float>{5, 6, 7, 8});
}

TEST_CASE("keys that differ inside the common prefix are refused, since its pages are shared") {
  Problem problem = small_problem();
  problem.batch = {{1, 33}, {5, 48}, {20, 20}};
  Tensors tensors = fitting_tensors();
  problem.cascade.common_prefix_len = 16;
  check_error(problem, tensors, ErrorKind::kValue, "position 0 of request 0 differs");
  const AttentionInputs shared = make_inputs(problem);
  tensors["key"] = shared.key;
  tensors["value"] = shared.value;
  CHECK_NOTHROW(load(problem, tensors));
}

}  // namespace
}  // namespace attnbench
