#include "plugin/python_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/parsing.h"
#include "plugin/child_run.h"

namespace attnbench {
namespace {

constexpr double kLimitS = 300;  // packages of gigabytes on a cold disk take minutes

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// By the variables and not by what is first on the path: a program that is started from an editor
/// or a service has the environment of its user but often another path.
std::string find_python() {
  if (const std::string chosen = variable("ATTNBENCH_PYTHON"); !chosen.empty()) return chosen;
  const std::string environment = variable("VIRTUAL_ENV");
  return environment.empty() ? "python3" : environment + "/bin/python3";
}

/// What holds until an adapter has said something else: only its reason is to be seen.
AttnbenchBackend anything() {
  AttnbenchBackend table{};
  table.devices = table.attention_types = table.dtypes = table.operations = ~0u;
  table.features = ~0ull;
  return table;
}

std::uint64_t number(const std::string& value) { return std::stoull(value); }
std::uint32_t small_number(const std::string& value) {
  return static_cast<std::uint32_t>(number(value));
}

/// Takes a line about an adapter, whose key and value it has.
void set_fact(const std::string& key, const std::string& value, PythonAdapter& adapter) {
  const std::map<std::string, std::string*> texts = {{"file", &adapter.file},
                                                     {"sha256", &adapter.sha256},
                                                     {"version", &adapter.version},
                                                     {"description", &adapter.description},
                                                     {"unsupported", &adapter.unsupported}};
  AttnbenchBackend& table = adapter.table;
  const std::map<std::string, std::uint32_t*> numbers = {
      {"devices", &table.devices},
      {"attention_types", &table.attention_types},
      {"dtypes", &table.dtypes},
      {"kv", &table.kv},
      {"lse", &table.lse},
      {"empty_rows", &table.empty_rows},
      {"nondeterministic", &table.nondeterministic},
      {"operations", &table.operations},
      {"lse_axes", &table.lse_axes}};
  if (const auto text = texts.find(key); text != texts.end()) *text->second = value;
  if (const auto field = numbers.find(key); field != numbers.end()) {
    *field->second = small_number(value);
  }
  if (key == "features") table.features = number(value);
  if (key == "error") fail(ErrorKind::kValue, "backend 'python:{}': {}", adapter.name, value);
}

/// Takes a line about the interpreter.
void set_fact(const std::string& key, const std::string& value, PythonEnvironment& python) {
  if (key == "python") python.version = value;
  if (key == "executable") python.executable = value;
  if (key == "library") python.library = value;
  if (key == "unsupported") python.unsupported = value;
  if (key == "path") python.search_path += (python.search_path.empty() ? "" : "\n") + value;
}

/// Reads the lines "key value" of describe.py: first those about the interpreter, then "class" and
/// what follows from it for each adapter, last "end". False without it: the interpreter ended while
/// it imported the last class that was named.
bool read_lines(const std::string& text, PythonEnvironment& python) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string key = line.substr(0, space);
    const std::string value = space < line.size() ? line.substr(space + 1) : "";
    if (key == "end") return true;
    if (key == "class") {
      python.adapters.push_back({value, "", "", "", "", "", anything()});
    } else if (python.adapters.empty()) {
      set_fact(key, value, python);
    } else {
      set_fact(key, value, python.adapters.back());
    }
  }
  return false;
}

}  // namespace

bool is_adapter_name(const std::string& name) {
  static const Pattern dotted("[A-Za-z_]\\w*(\\.[A-Za-z_]\\w*)*:[A-Za-z_]\\w*(\\.[A-Za-z_]\\w*)*");
  return !dotted.match(name).empty();
}

PythonEnvironment describe_python(const std::string& package_dir,
                                  const std::vector<std::string>& names) {
  const std::string interpreter = find_python();
  std::vector<std::string> argv{interpreter, package_dir + "/attnbench/describe.py"};
  argv.insert(argv.end(), names.begin(), names.end());
  const ProgramOutput said = run_program(argv, kLimitS);
  // An adapter that fails to import says so in a line; one that ends the interpreter cannot.
  const std::string how = said.trouble.empty() ? "exit status 0" : said.trouble;
  PythonEnvironment python;
  const bool complete = read_lines(said.out, python);
  if (!complete && !python.adapters.empty()) {
    fail(ErrorKind::kFormat, "backend 'python:{}': importing it ended {}: {}",
         python.adapters.back().name, interpreter, how);
  }
  if (!complete && python.unsupported.empty()) {
    python.unsupported = fmt::format("no Python: {}: {}", interpreter, how);
  }
  // Without a Python every adapter is still listed, with the reason, as other backends are.
  for (std::size_t i = python.adapters.size(); i < names.size(); ++i) {
    python.adapters.push_back({names[i], "", "", "", "", "", anything()});
  }
  for (PythonAdapter& adapter : python.adapters) {
    if (!python.unsupported.empty()) adapter.unsupported = python.unsupported;
    if (adapter.file.empty()) adapter.file = python.executable;
  }
  return python;
}

}  // namespace attnbench
