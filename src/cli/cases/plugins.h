// Users' backends: the libraries of --plugin, and the Python classes that are named.
//
// A library is looked at by a child process. It is never loaded into the process that judges its
// cases, where it could touch what it is judged by.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/plugin/problem.h"
#include "cli/cases/device.h"
#include "cli/cases/scenario_files.h"
#include "cli/options/shared_options.h"

namespace attnbench {

/// Owns the backends that it gives.
class Plugins {
 public:
  /// `device` is the one that cases will run on, on `num_threads` of the CPU (0 = all cores). A
  /// library is given up after `load_limit_s` (0 = never). Errors: those of describe_plugin();
  /// E-VALUE for a name that another backend has.
  Plugins(const std::vector<std::string>& paths, const DeviceChoice& device, int num_threads = 0,
          double load_limit_s = kLoadLimitS);

  /// Adds the Python classes among `names` ("python:MODULE:CLASS"), each once; names of another
  /// form are left to whoever looks for the backend. Errors: those of load_python().
  void add_named(const std::vector<std::string>& names);

  const std::vector<const Backend*>& backends() const { return backends_; }
  /// The built-in ones and these.
  std::vector<const Backend*> all() const;

 private:
  static constexpr double kLoadLimitS = 60;  // libraries of a gigabyte take seconds
  void add_library(const std::string& path, double load_limit_s);
  void add(std::unique_ptr<Backend> backend);

  PluginDevice device_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<const Backend*> backends_;
};

/// The names that --backend and the scenarios give.
std::vector<std::string> named_backends(const SelectionOptions& selection,
                                        const std::vector<LoadedScenario>& scenarios);
/// Whether any of them is a Python class, so that Python will be started for it.
bool names_python(const std::vector<std::string>& backends);

}  // namespace attnbench
