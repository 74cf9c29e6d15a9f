#include "scenario/text/merge.h"

#include "scenario/test_support.h"

namespace attnbench {
namespace {

using namespace testing;

constexpr const char* kBase =
    "attention: {num_heads: 8, num_kv_heads: 2, head_size: 64, sliding_window: 128}\n"
    "kv_cache: {dtype: fp8, k_scale: [0.5, 0.25], block_size: 32}\n";

TEST_CASE("extends merges mappings and replaces lists, scalars and by null") {
  const TempFolder folder;
  folder.write("models/base.yaml", kBase);
  const auto file = folder.write("s.yaml",
                                 "name: t\nextends: models/base.yaml\nbatch: q16\n"
                                 "attention: {head_size: 128, sliding_window: null}\n"
                                 "kv_cache: {k_scale: [0.125, 1.0]}\n");
  const Problem problem = load_scenario(file).cases.at(0);
  CHECK(problem.attention.num_heads == 8);
  CHECK(problem.attention.head_size == 128);
  CHECK(!problem.attention.sliding_window);
  CHECK(problem.kv_cache.block_size == 32);
  CHECK(problem.kv_cache.k_scale == std::vector<double>{0.125, 1.0});
}

TEST_CASE("extends looks beside the file first, then along the search path") {
  const TempFolder folder;
  const TempFolder installed;
  installed.write("base.yaml", kBase);
  installed.write("other.yaml", "extends: base.yaml\nkv_cache: {block_size: 64}\n");
  const std::string text = "name: t\nbatch: q16\nextends: ";
  const auto through_path = folder.write("a.yaml", text + "other.yaml\n");
  const ScenarioOptions options{.overrides = {}, .search_path = {installed.path()}};
  CHECK(load_scenario(through_path, options).cases.at(0).kv_cache.block_size == 64);
  folder.write("other.yaml", std::string(kBase) + "cascade: {mode: never}\n");
  CHECK(load_scenario(through_path, options).cases.at(0).kv_cache.block_size == 32);
  const auto missing = folder.write("b.yaml", text + "nowhere.yaml\n");
  try {
    load_scenario(missing, options);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kIo);
    const std::string message = error.what();
    CHECK(message.starts_with(missing.string() + ":3: extends: expected a file, found none at "));
    CHECK(message.find((folder.path() / "nowhere.yaml").string()) != std::string::npos);
    CHECK(message.find((installed.path() / "nowhere.yaml").string()) != std::string::npos);
  }
}

TEST_CASE("recursion in extends is reported with its chain") {
  const TempFolder folder;
  folder.write("a.yaml", "name: t\nextends: b.yaml\n");
  folder.write("b.yaml", "extends: ./c.yaml\n");
  folder.write("c.yaml", "\n\nextends: ../" + folder.path().filename().string() + "/a.yaml\n");
  folder.write("self.yaml", "extends: self.yaml\n");
  try {
    load_scenario(folder.path() / "a.yaml");
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kConfig);
    CHECK(std::string(error.what()) ==
          (folder.path() / "c.yaml").string() +
              ":3: extends: expected no recursion, found a.yaml -> b.yaml -> c.yaml -> a.yaml");
  }
  CHECK_THROWS_AS(load_scenario(folder.path() / "self.yaml"), Error);
}

TEST_CASE("an error in an extended file names that file and line") {
  const TempFolder folder;
  const auto base = folder.write("base.yaml", kBase + std::string("dcp:\n  world_sise: 2\n"));
  const auto file = folder.write("s.yaml", "name: t\nextends: base.yaml\nbatch: q16\n");
  try {
    load_scenario(file);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          base.string() + ":4: unknown key 'dcp.world_sise'; did you mean 'world_size'?");
  }
}

TEST_CASE("paths are relative to the file in which they stand") {
  const TempFolder folder;
  folder.write("models/base.yaml", std::string(kBase) + "inputs: {file: weights/x.safetensors}\n");
  const auto file = folder.write("s.yaml",
                                 "name: t\nextends: models/base.yaml\nbatch: q16\n"
                                 "kv_cache: {int8_level: 1, value_scale_file: s.json}\n");
  const Problem problem = load_scenario(file).cases.at(0);
  CHECK(*problem.inputs.file == (folder.path() / "models/weights/x.safetensors").string());
  CHECK(*problem.kv_cache.value_scale_file == (folder.path() / "s.json").string());
  const ScenarioOptions set{.overrides = {{"inputs.file", "here.safetensors"}}, .search_path = {}};
  CHECK(*load_scenario(file, set).cases.at(0).inputs.file == "here.safetensors");
  CHECK(*only_case(base_text("batch: q1\ninputs: {file: /abs.safetensors}\n")).inputs.file ==
        "/abs.safetensors");
}

TEST_CASE("--set overrides the file and takes a swept key out of the sweep") {
  const std::string text = base_text(
      "batch: q16\nsweep: {attention.dtype: [float16, float32], kv_cache.block_size: [16, 32]}\n");
  const ScenarioOptions set{
      .overrides = {{"kv_cache.block_size", "64"}, {"attention", "{head_size: 128}"}},
      .search_path = {}};
  const std::vector<Problem> cases = cases_of(text, set);
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].kv_cache.block_size == 64);
  CHECK(cases[0].attention.head_size == 128);
  CHECK(cases[0].attention.num_heads == 8);
  CHECK(cases[0].attention.dtype == Dtype::kBF16);
  const ScenarioOptions batch{.overrides = {{"batch", "[q1, q2]"}}, .search_path = {}};
  CHECK(names_of(base_text("sweep: {batch: [q5]}\n"), batch) ==
        std::vector<std::string>{"q1", "q2"});
}

TEST_CASE("later --set wins, and null unsets") {
  const ScenarioOptions set{.overrides = {{"attention.scale", "2"},
                                          {"attention.sliding_window", "4"},
                                          {"attention.scale", "0.5"},
                                          {"attention.sliding_window", ""}},
                            .search_path = {}};
  const Problem problem = only_case(base_text("batch: q16\n"), set);
  CHECK(problem.attention.scale == 0.5);
  CHECK(!problem.attention.sliding_window);
}

TEST_CASE("null takes back a key that has no null of its own, and no key that there is not") {
  const std::string text = base_text("batch: q16\nkv_cache: {dtype: fp8, k_scale: 0.5}\n");
  const ScenarioOptions both{
      .overrides = {{"kv_cache.dtype", "auto"}, {"kv_cache.k_scale", "null"}}, .search_path = {}};
  CHECK(only_case(text, both).kv_cache.k_scale == std::vector<double>{1.0});
  const ScenarioOptions one{.overrides = {{"kv_cache.dtype", "auto"}}, .search_path = {}};
  // Without it, the key that the first option leaves unread is taken back all the same, and said.
  const Scenario without = parse_scenario(text, "s.yaml", one);
  CHECK(without.cases.at(0).kv_cache.k_scale == std::vector<double>{1.0});
  REQUIRE(without.notices.size() == 1);
  CHECK(without.notices[0].starts_with("s.yaml:4: kv_cache.k_scale: left out, since "));
  const ScenarioOptions unknown{.overrides = {{"kv_cache.k_scail", "null"}}, .search_path = {}};
  CHECK(error_of(text, unknown).find("unknown key 'kv_cache.k_scail'") != std::string::npos);
}

TEST_CASE("an error in --set names the option") {
  const auto error_with = [](const std::string& key, const std::string& value) {
    return error_of(base_text("batch: q16\n"), {.overrides = {{key, value}}, .search_path = {}});
  };
  CHECK(error_with("attention.head_sise", "64") ==
        "E-FORMAT: --set attention.head_sise=64: unknown key 'attention.head_sise'; did you mean "
        "'head_size'?");
  CHECK(
      error_with("attention.head_size", "big") ==
      "E-FORMAT: --set attention.head_size=big: attention.head_size: expected an integer >= 1 and "
      "<= 65536, found 'big'");
  CHECK(
      error_with("kv_cache.block_size", "24") ==
      "E-CONFIG: --set kv_cache.block_size=24: kv_cache.block_size: Block size must be a multiple "
      "of 16. Found 24; the nearest is 32");
  CHECK(error_with("sweep.attention.head_size", "[1]").starts_with("E-CONFIG: --set sweep"));
  CHECK(error_with("extends", "x.yaml").starts_with("E-CONFIG: --set extends=x.yaml: expected"));
  CHECK(
      error_with("attention.head_size", "[1").starts_with("E-FORMAT: --set attention.head_size="));
  CHECK(error_with("attention.scale", "1\nx: 2").starts_with("E-FORMAT: --set attention.scale="));
  CHECK(error_with("", "1").starts_with("E-FORMAT: --set =1: unknown key ''"));
}

}  // namespace
}  // namespace attnbench
