#include "cli/plugins.h"

#include <utility>

#include "backends/backend.h"
#include "backends/plugin_backend.h"
#include "core/error.h"
#include "plugin/plugin_library.h"
#include "plugin/trial_run.h"

namespace attnbench {
namespace {

constexpr double kLoadLimitS = 60;  // libraries of a gigabyte take seconds

/// Why first: what loading runs may crash or hang, and then this process would.
void try_to_load(const std::string& path) {
  const std::string trouble = trial_run([&] { PluginLibrary library(path); }, kLoadLimitS);
  if (trouble.empty()) return;
  fail(ErrorKind::kFormat, "--plugin '{}': loading it ended a process: {}", path, trouble);
}

PluginDevice plugin_device(const DeviceChoice& device, int num_threads) {
  return {device.is_cuda(), device.info ? device.info->index : 0, device.facts, num_threads};
}

}  // namespace

Plugins::Plugins(const std::vector<std::string>& paths, const DeviceChoice& device,
                 int num_threads) {
  for (const std::string& path : paths) add(path, device, num_threads);
}

void Plugins::add(const std::string& path, const DeviceChoice& device, int num_threads) {
  try_to_load(path);
  for (std::unique_ptr<Backend>& backend : load_plugin(path, plugin_device(device, num_threads))) {
    for (const Backend* other : all()) {
      if (other->name() != backend->name()) continue;
      const PluginInfo* plugin = other->plugin();
      fail(ErrorKind::kValue, "--plugin '{}': the name '{}' is taken by {}", path, backend->name(),
           plugin == nullptr ? "a built-in backend" : "'" + plugin->library + "'");
    }
    backends_.push_back(backend.get());
    owned_.push_back(std::move(backend));
  }
}

std::vector<const Backend*> Plugins::all() const {
  std::vector<const Backend*> all = all_backends();
  all.insert(all.end(), backends_.begin(), backends_.end());
  return all;
}

}  // namespace attnbench
