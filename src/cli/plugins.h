// --plugin: the libraries of users' backends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "cli/device.h"

namespace attnbench {

/// Owns the backends that it gives.
class Plugins {
 public:
  /// `device` is the one that cases will run on, on `num_threads` of the CPU (0 = all cores).
  /// Errors: those of PluginLibrary; E-FORMAT when loading a library ends the process; E-VALUE for
  /// a name that another backend has.
  Plugins(const std::vector<std::string>& paths, const DeviceChoice& device, int num_threads = 0);

  const std::vector<const Backend*>& backends() const { return backends_; }
  /// The built-in ones and these.
  std::vector<const Backend*> all() const;

 private:
  void add(const std::string& path, const DeviceChoice& device, int num_threads);

  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<const Backend*> backends_;
};

}  // namespace attnbench
