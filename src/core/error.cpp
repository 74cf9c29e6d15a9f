#include "core/error.h"

namespace attnbench {

const char* error_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kConfig:
      return "E-CONFIG";
    case ErrorKind::kShape:
      return "E-SHAPE";
    case ErrorKind::kDtype:
      return "E-DTYPE";
    case ErrorKind::kValue:
      return "E-VALUE";
    case ErrorKind::kFormat:
      return "E-FORMAT";
    case ErrorKind::kIo:
      return "E-IO";
    case ErrorKind::kCapacity:
      return "E-CAPACITY";
    case ErrorKind::kUnsupported:
      return "E-UNSUPPORTED";
    case ErrorKind::kCuda:
      return "E-CUDA";
    case ErrorKind::kInternal:
      return "E-INTERNAL";
  }
  return "E-INTERNAL";
}

std::string Error::full_message() const { return fmt::format("{}: {}", error_code(kind_), what()); }

}  // namespace attnbench
