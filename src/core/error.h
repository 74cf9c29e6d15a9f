// The one exception type of the program, with the error classes of semantics §0.5.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace attnbench {

enum class ErrorKind {
  kUsage,        // bad command line
  kConfig,       // contradictory or out-of-range option
  kShape,        // wrong rank or extent
  kDtype,        // wrong element type
  kValue,        // bad content: index out of range, non-positive scale, non-monotone array
  kFormat,       // malformed file
  kIo,           // unreadable or unwritable file
  kCapacity,     // would exceed memory or an integer range; a case ends as status "error"
  kUnsupported,  // what the device has no kernel for; a case ends as status "unsupported"
  kCuda,         // the device or its libraries failed; a case ends as status "error"
  kInternal,     // a defect of attnbench itself
};

/// "E-CONFIG", "E-SHAPE", ...; kUsage is "usage".
const char* error_code(ErrorKind kind);

/// what() is the message without the code; it names the argument, what was expected and what was
/// found.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  /// "E-SHAPE: <message>", as printed to users.
  std::string full_message() const;

 private:
  ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace attnbench
