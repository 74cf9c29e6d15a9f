// The one exception type of the program, with the error classes of semantics §0.5.
#pragma once

#include <fmt/core.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/enum_names.h"

namespace attnbench {

/// Meanings and codes are in the table of error.cpp.
enum class ErrorKind {
  kUsage,
  kConfig,
  kShape,
  kDtype,
  kValue,
  kFormat,
  kIo,
  kCapacity,
  kUnsupported,
  kCuda,
  kInternal
};
std::span<const EnumRow<ErrorKind>> enum_rows(ErrorKind);

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
