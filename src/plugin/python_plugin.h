// Python classes as backends of the plugin interface: their functions call into a Python that is
// started by the first of them, in the process that runs cases.
//
// To the rest of the program such a class is a plugin like a shared library: its table has C
// functions that call into the interpreter. Python itself is started as late as possible, because a
// started one cannot be forked safely and cases run in child processes; what the parent needs to
// know of a class (name, version, what it declares) a child has found out before
// (python_environment.h).
//
// An exception in Python becomes the text that the C function returns, which is the reason of an
// error result: a case fails, the run goes on. Tensors are handed over as addresses and made torch
// tensors by the Python package, without a copy.
#pragma once

#include <string>
#include <vector>

#include "core/result/result.h"
#include "plugin/plugin_library.h"

namespace attnbench {

/// A class as a backend, before Python has been started for it.
struct PythonPlugin {
  PluginInfo info;  // file and version of the class
  PluginTable table;
};

/// What the name of such a backend, "python:MODULE:CLASS", begins with, in --backend and in
/// scenarios as in results.
constexpr const char* kPythonPrefix = "python:";

/// The adapters "MODULE:CLASS" of the active Python, named "python:MODULE:CLASS". `package_dir`
/// holds the Python package attnbench, through whose module `host` the adapters are called. An
/// adapter that cannot work here is listed, too, and refuses every case with the reason.
/// Errors: those of describe_python().
std::vector<PythonPlugin> load_python_plugins(const std::string& package_dir,
                                              const std::vector<std::string>& names);

}  // namespace attnbench
