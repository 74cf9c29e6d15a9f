#include "cli/cases/starters.h"

#include <fmt/format.h>

#include <memory>

#include "core/error.h"
#include "scenario/text/files.h"
#include "scenario/text/hf_config.h"
#include "scenario/text/yaml_reader.h"

namespace attnbench {
namespace {

const std::string& embedded(const char* path) { return embedded_starter_files().at(path); }

/// Without the comment at the top, which tells how the example is built in the repository.
std::string without_first_comment(const std::string& text) {
  std::size_t line = 0;
  while (text.compare(line, 2, "//") == 0) line = text.find('\n', line) + 1;
  return text.substr(line);
}

std::string replaced_once(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) fail(ErrorKind::kInternal, "'{}' is not in the example", from);
  return text.replace(at, from.size(), to);
}

/// What every scenario goes on with.
constexpr const char* kEverydayBatches =
    "# [count]q<new tokens>[s<total keys>], joined by '_'; k = 1024. Every batch is a case.\n"
    "batch:\n"
    "  - 8q1s1k            # decodes of 8 requests over 1024 keys each\n"
    "  - q256              # a prompt of 256 tokens\n"
    "  - 6q1s512_2q64s256  # decodes beside chunks of prompts\n"
    "# kv_cache: {dtype: fp8_e4m3, block_size: 32}\n"
    "# backends: [FLASH_ATTN, TRITON_ATTN]   # default: all that the type has\n"
    "# sweep:                                # each combination is a case\n"
    "#   kv_cache.layout: [NHD, HND]\n";

/// Scalars of a section as YAML; a JSON scalar is one.
std::string section_text(const Value& section) {
  std::string text;
  for (const Value::Entry& entry : section.entries) {
    const std::string json = to_json_text(entry.value);
    const bool is_word = entry.value.is_string();
    text += fmt::format("  {}: {}\n", entry.key, is_word ? entry.value.text : json);
  }
  return text;
}

}  // namespace

std::vector<StarterFile> plugin_starter() {
  std::string kernel = without_first_comment(embedded("examples/plugin/naive_attention.cpp"));
  kernel = replaced_once(kernel, "b.name = \"NAIVE\"", "b.name = \"MY_ATTENTION\"");
  const std::string head =
      "// Attention as it is written on paper, on one CPU thread: a backend to start from.\n"
      "// attnbench_backend.h says what every field means.\n";
  return {{"CMakeLists.txt", embedded("examples/init/plugin/CMakeLists.txt")},
          {"attnbench_backend.h", embedded("src/plugin/attnbench_backend.h")},
          {"my_attention.cpp", head + kernel},
          {"case.yaml", embedded("examples/init/plugin/case.yaml")}};
}

std::vector<StarterFile> python_starter() {
  return {{"my_attention.py", embedded("examples/init/python/my_attention.py")},
          {"case.yaml", embedded("examples/init/plugin/case.yaml")}};
}

StarterFile scenario_starter() {
  return {"my-scenario.yaml", embedded("examples/init/scenario.yaml") + kEverydayBatches};
}

StarterFile scenario_of_model(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  const std::string text = read_text_file(file, kMaxDocumentBytes);
  const Value config = read_yaml(text, std::make_shared<const std::string>(file.string()));
  if (!is_hf_config(config)) {
    fail(ErrorKind::kFormat,
         "{}: expected the config.json of a model, with num_attention_heads and the like",
         file.string());
  }
  const Value scenario = scenario_of_hf_config(config);
  const std::string& name = scenario.find("name")->text;
  std::string result =
      fmt::format("# Dimensions from {}.\nschema: 1\nname: {}\ndescription: {}\n",
                  file.filename().string(), name, to_json_text(*scenario.find("description")));
  for (const char* section : {"attention", "mla", "kv_cache"}) {
    const Value* const values = scenario.find(section);
    if (values != nullptr) result += fmt::format("{}:\n{}", section, section_text(*values));
  }
  const bool is_encoder = scenario.find_path("attention.type")->is_string("encoder_only");
  result += is_encoder ? "batch: 8q512\n" : kEverydayBatches;
  return {name + ".yaml", result};
}

}  // namespace attnbench
