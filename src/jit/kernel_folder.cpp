#include "jit/kernel_folder.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail(ErrorKind::kIo, "{}: cannot be read", path.string());
  return std::move(text).str();
}

}  // namespace

std::string kernel_folder() {
  const char* value = std::getenv(kKernelFolderVariable);
  return value == nullptr ? "" : value;
}

KernelFiles read_kernel_files(const fs::path& folder) {
  KernelFiles files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const fs::path& path = at->path();
    if (path.extension() != ".cuh" && path.extension() != ".h") continue;
    files["kernels/" + path.lexically_relative(folder).generic_string()] = text_of(path);
  }
  if (error || files.empty()) {
    fail(ErrorKind::kIo, "{}: {} names no folder of device files{}", folder.string(),
         kKernelFolderVariable, error ? ": " + error.message() : "");
  }
  return files;
}

const KernelFiles& kernel_files() {
  static const KernelFiles files =
      kernel_folder().empty() ? embedded_kernel_files() : read_kernel_files(kernel_folder());
  return files;
}

}  // namespace attnbench
