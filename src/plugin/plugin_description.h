// What a user's library says of itself, found out without loading it here: a child process loads it
// and sends its tables back as data. So code of the library, its constructors included, runs only
// where its cases run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/plugin_library.h"

namespace attnbench {

struct PluginDescription {
  std::string path;    // as given
  std::string sha256;  // of the file, computed here
  /// As PluginLibrary::tables(), but that functions only fail: they are there or not.
  std::vector<PluginTable> tables;
};

/// Errors: those of PluginLibrary; E-FORMAT when loading it ends the child, or has no end within
/// `limit_s` seconds (0 = no limit).
PluginDescription describe_plugin(const std::string& path, double limit_s);

/// The library, loaded into this process when its first function is needed.
class LazyPluginLibrary {
 public:
  explicit LazyPluginLibrary(PluginDescription description)
      : description_(std::move(description)) {}
  const PluginDescription& description() const { return description_; }
  /// The table with the functions. Errors: those of PluginLibrary; E-FORMAT when it is not what was
  /// described.
  const PluginTable& table(std::size_t index);

 private:
  PluginDescription description_;
  std::optional<PluginLibrary> library_;
};

}  // namespace attnbench
