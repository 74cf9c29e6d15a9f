// CPython inside this process, through functions of its stable ABI that are found at run time: one
// build serves every version from 3.9 on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/python_environment.h"

namespace attnbench {

using PythonObject = struct _object;  // PyObject

/// An argument of a Python function.
struct PythonArgument {
  PythonArgument(std::string value) : text(std::move(value)) {}                           // NOLINT
  PythonArgument(const void* value) : number(reinterpret_cast<std::uintptr_t>(value)) {}  // NOLINT
  std::optional<std::string> text;
  std::uintptr_t number = 0;  // an address
};

/// The functions of the module attnbench.host. Python cannot be started twice in a process, so
/// there is one of these in a process, and it is never closed.
class EmbeddedPython {
 public:
  /// Starts it. Errors: E-UNSUPPORTED with the reason why it cannot be.
  EmbeddedPython(const PythonEnvironment& environment, const std::string& package_dir);
  EmbeddedPython(const EmbeddedPython&) = delete;
  EmbeddedPython& operator=(const EmbeddedPython&) = delete;

  /// What a function complains of; nothing when it returned None.
  std::optional<std::string> complaint_of(const char* function,
                                          const std::vector<PythonArgument>& arguments);
  /// The same for a function that returns a tuple when it has no complaint: its objects are
  /// appended to `results`, and are to be released.
  std::optional<std::string> call(const char* function,
                                  const std::vector<PythonArgument>& arguments,
                                  std::vector<PythonObject*>& results);
  /// Takes a text, or None, for which there is nothing.
  std::optional<std::string> take_text(PythonObject* object);
  std::optional<std::string> complaint_of(PythonObject* function);
  /// The same for a function that may return a tuple of integers, which become `numbers`; none
  /// otherwise.
  std::optional<std::string> complaint_of(PythonObject* function,
                                          std::vector<std::int64_t>& numbers);
  void release(PythonObject* object);

 private:
  struct Api;
  class Lock;
  PythonObject* tuple_of(const std::vector<PythonArgument>& arguments) const;
  PythonObject* run(const char* function, const std::vector<PythonArgument>& arguments) const;
  std::optional<std::string> words_of(PythonObject* result) const;

  std::shared_ptr<Api> api_;
  PythonObject* host_ = nullptr;
};

}  // namespace attnbench
