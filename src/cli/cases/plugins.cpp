#include "cli/cases/plugins.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "backends/backend.h"
#include "backends/plugin/backend.h"
#include "core/error.h"
#include "plugin/python_environment.h"
#include "plugin/python_plugin.h"

namespace attnbench {
namespace {

/// The folder of the Python package attnbench: of the installation, or of the source tree.
std::string python_dir() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share" / "attnbench" / "python";
  return fs::is_directory(installed, error) ? installed.string() : ATTNBENCH_PYTHON_DIR;
}

PluginDevice plugin_device(const DeviceChoice& device, int num_threads) {
  return {device.is_cuda(), device.info ? device.info->index : 0, device.facts, num_threads};
}

}  // namespace

Plugins::Plugins(const std::vector<std::string>& paths, const DeviceChoice& device, int num_threads,
                 double load_limit_s)
    : device_(plugin_device(device, num_threads)) {
  for (const std::string& path : paths) add_library(path, load_limit_s);
}

void Plugins::add(std::unique_ptr<Backend> backend) {
  backends_.push_back(backend.get());
  owned_.push_back(std::move(backend));
}

// Why names must differ: results, filters and baselines know a backend by nothing else.
void Plugins::add_library(const std::string& path, double load_limit_s) {
  for (std::unique_ptr<Backend>& backend : load_plugin(path, device_, load_limit_s)) {
    for (const Backend* other : all()) {
      if (other->name() != backend->name()) continue;
      const PluginInfo* plugin = other->plugin();
      fail(ErrorKind::kValue, "--plugin '{}': the name '{}' is taken by {}", path, backend->name(),
           plugin == nullptr ? "a built-in backend" : "'" + plugin->library + "'");
    }
    add(std::move(backend));
  }
}

void Plugins::add_named(const std::vector<std::string>& names) {
  const std::string prefix = kPythonPrefix;
  std::set<std::string> known;
  for (const Backend* backend : backends_) known.emplace(backend->name());
  std::vector<std::string> adapters;
  for (const std::string& name : names) {
    if (!name.starts_with(prefix) || !known.insert(name).second) continue;
    const std::string adapter = name.substr(prefix.size());
    if (is_adapter_name(adapter)) adapters.push_back(adapter);
  }
  if (adapters.empty()) return;
  for (std::unique_ptr<Backend>& backend : load_python(python_dir(), adapters, device_)) {
    add(std::move(backend));
  }
}

std::vector<const Backend*> Plugins::all() const {
  std::vector<const Backend*> all = all_backends();
  all.insert(all.end(), backends_.begin(), backends_.end());
  return all;
}

bool names_python(const std::vector<std::string>& backends) {
  return std::any_of(backends.begin(), backends.end(),
                     [](const std::string& name) { return name.starts_with(kPythonPrefix); });
}

std::vector<std::string> named_backends(const SelectionOptions& selection,
                                        const std::vector<LoadedScenario>& scenarios) {
  std::vector<std::string> names = selection.backends;
  for (const LoadedScenario& loaded : scenarios) {
    const std::vector<std::string>& more = loaded.scenario.backends;
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

}  // namespace attnbench
