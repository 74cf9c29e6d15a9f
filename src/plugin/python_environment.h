// The Python of the active environment and the adapters in it, described by a Python that runs as a
// child process: importing an adapter may load gigabytes, open a device or crash.
#pragma once

#include <string>
#include <vector>

#include "plugin/attnbench_backend.h"

namespace attnbench {

/// A class of Python that is a backend.
struct PythonAdapter {
  std::string name;          // "MODULE:CLASS"
  std::string file;          // of its source
  std::string sha256;        // of that file
  std::string version;       // of the kernel, in the adapter's words
  std::string description;   // a line
  std::string unsupported;   // why it takes no case here: "package X not found in PYTHON"
  AttnbenchBackend table{};  // what it declares; functions, name and texts are not set
};

struct PythonEnvironment {
  std::string executable;   // of the interpreter
  std::string version;      // "3.12.3"
  std::string library;      // its shared library
  std::string search_path;  // sys.path, a line each
  std::string unsupported;  // why it cannot be used: there is none, it has no shared library
  std::vector<PythonAdapter> adapters;
};

/// Whether `name` is "MODULE:CLASS", both of dotted identifiers.
bool is_adapter_name(const std::string& name);

/// Runs the interpreter: that of the variable ATTNBENCH_PYTHON, of the active virtual environment,
/// or python3 of the path. `package_dir` holds the Python package attnbench. Errors: E-VALUE for an
/// adapter that is not there or cannot be one; E-FORMAT when importing ends the interpreter.
PythonEnvironment describe_python(const std::string& package_dir,
                                  const std::vector<std::string>& names);

}  // namespace attnbench
