// The error classes with their codes. A code is part of the contract with users and scripts: it
// begins the message on the terminal, stands in result files as the reason of a case and decides
// the exit status, so a row may be added but not renamed. What a message says after the code is
// free.
#include "core/error.h"

namespace attnbench {

std::span<const EnumRow<ErrorKind>> enum_rows(ErrorKind) {
  // In the order of the enumerators. Those up to kIo are for users to correct; kCapacity,
  // kUnsupported and kCuda are of a case on this machine, and the other cases of the run go on;
  // kInternal is never the fault of an input.
  using enum ErrorKind;
  static constexpr auto kRows = every_value<EnumRow<ErrorKind>>({
      {kUsage, "usage", "bad command line"},
      {kConfig, "E-CONFIG", "contradictory or out-of-range option"},
      {kShape, "E-SHAPE", "wrong rank or extent"},
      {kDtype, "E-DTYPE", "wrong element type"},
      {kValue, "E-VALUE",
       "bad content: index out of range, non-positive scale, non-monotone array"},
      {kFormat, "E-FORMAT", "malformed file"},
      {kIo, "E-IO", "unreadable or unwritable file"},
      {kCapacity, "E-CAPACITY",
       "would exceed memory or an integer range; a case ends as status error"},
      {kUnsupported, "E-UNSUPPORTED",
       "what the device has no kernel for; a case ends as status unsupported"},
      {kCuda, "E-CUDA", "the device or its libraries failed; a case ends as status error"},
      {kInternal, "E-INTERNAL", "a defect of attnbench itself"},
  });
  return kRows;
}

// kUsage has a word and no code: such messages are about the command line and never stand in a
// file.
const char* error_code(ErrorKind kind) { return to_string(kind); }

// The form in which the terminal and result files show an error.
std::string Error::full_message() const { return fmt::format("{}: {}", error_code(kind_), what()); }

}  // namespace attnbench
