// A user's shared library (attnbench_backend.h): found, opened, its tables checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/dynamic_library.h"
#include "plugin/attnbench_backend.h"
#include "plugin/plugin_call.h"

namespace attnbench {

/// A tensor of its own that a run returned, in memory of the case's device.
struct ReturnedTensor {
  /// What it stands for. An LSE is [H, T], or [T, H] by tokens.
  enum class Kind { kOutput, kLse, kLseByToken };
  Kind kind = Kind::kOutput;
  const void* data = nullptr;
  std::int64_t first_token = 0;     // of those that it has
  std::vector<std::int64_t> shape;  // of the tensor that it stands for, tokens on one axis or more
  std::vector<std::int64_t> strides;  // in elements
};

/// A table of the plugin as this version knows it: fields that an older plugin does not
/// have are 0.
struct PluginTable {
  const AttnbenchBackend* self = nullptr;  // what the plugin's functions get
  AttnbenchBackend table{};
  PluginFloats floats = current_floats();  // every call of it has these
  bool on_cuda = false;                    // cases run on a CUDA device
  /// The tensors that the last run() returned in place of those that it was given, in memory that
  /// stays as it is until the next one; null for plugins that write to the given ones only. Not
  /// part of the interface. No code of the plugin may run in it: it would not be timed.
  const std::vector<ReturnedTensor>& (*returned)(const void* state) = nullptr;
  std::shared_ptr<const void> owner;  // of what `self` points to, where no library is
};

/// Stays loaded until the program ends.
class PluginLibrary {
 public:
  /// Errors, all naming the file: E-IO when it cannot be read; E-FORMAT for no shared library, one
  /// of another machine, one that the loader refuses, one without attnbench_backend() or of another
  /// ABI version; E-VALUE for a table that cannot be used.
  explicit PluginLibrary(std::string path);

  const std::string& path() const { return path_; }      // as given
  const std::string& sha256() const { return sha256_; }  // of the file
  const std::vector<PluginTable>& tables() const { return tables_; }

 private:
  void read_tables();

  std::string path_;
  std::string sha256_;
  DynamicLibrary library_;
  std::vector<PluginTable> tables_;
};

/// All of the file, which is a shared library for this program. Errors: E-IO; E-FORMAT.
std::string library_bytes(const std::string& path);

/// Checks a table and takes what it has. `where` begins the messages. Errors: E-FORMAT, E-VALUE.
PluginTable check_table(const AttnbenchBackend* table, const std::string& where);

// Whether a file is a shared library of this machine, told before the loader is tried: its words
// are "wrong ELF class" or "invalid ELF header".

/// Empty, or why a file that begins with `head` (64 bytes or all of it) is no shared library for
/// this program: "it is built for AArch64, this program for x86-64".
std::string elf_problem(std::string_view head);

}  // namespace attnbench
