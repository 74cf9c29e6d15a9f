// The backends of a user's library: judged and timed like ours.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/plugin_problem.h"

namespace attnbench {

/// Opens a plugin for the device that cases will run on. Errors: those of PluginLibrary.
std::vector<std::unique_ptr<Backend>> load_plugin(const std::string& path,
                                                  const PluginDevice& device);

}  // namespace attnbench
