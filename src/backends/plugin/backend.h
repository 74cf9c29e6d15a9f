// The backends of a user's library: judged and timed like ours. What is different is trust: a
// user's code may crash, hang, remember or write where it must not, so it gets checks that ours do
// not (users_pipeline.h), and its cases can be run in processes of their own. A library may hold
// several backends; a Python class is opened through a library too (plugin/python_plugin.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/plugin/problem.h"

namespace attnbench {

/// The backends of a plugin, for the device that cases will run on. The library is looked at by a
/// child process, for `limit_s` seconds at most (0 = no limit), and loaded into this one only by
/// load(), refusals() and prepare() of a backend. Errors: those of describe_plugin().
std::vector<std::unique_ptr<Backend>> load_plugin(const std::string& path,
                                                  const PluginDevice& device, double limit_s);

/// The classes "MODULE:CLASS" of the active Python as backends "python:MODULE:CLASS". `package_dir`
/// holds the Python package attnbench. Errors: those of load_python_plugins().
std::vector<std::unique_ptr<Backend>> load_python(const std::string& package_dir,
                                                  const std::vector<std::string>& adapters,
                                                  const PluginDevice& device);

}  // namespace attnbench
