#include "cli/output_paths.h"

#include <filesystem>

#include "core/error.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStdout = "-";
constexpr int kMaxLinks = 40;  // as Linux follows

/// What a write to `path` goes to: behind all links, also one to a file that is not there yet.
fs::path destination(const std::string& path) {
  std::error_code error;
  fs::path target = fs::absolute(path, error);
  for (int i = 0; i < kMaxLinks && fs::is_symlink(target, error); ++i) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  const fs::path canonical = fs::weakly_canonical(target, error);
  return error ? target : canonical;
}

/// Whether what stood there before would be lost: not of a device or a pipe.
bool is_replaced(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return !fs::exists(status) || fs::is_regular_file(status);
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  if (a == kStdout || b == kStdout) return a == b;
  if (!is_replaced(a) || !is_replaced(b)) return false;
  std::error_code error;
  // Hard links have different paths.
  return fs::equivalent(a, b, error) || destination(a) == destination(b);
}

std::vector<InputPath> input_paths(const std::string& option,
                                   const std::vector<std::string>& paths) {
  std::vector<InputPath> inputs;
  for (const std::string& path : paths) inputs.push_back({option, path});
  return inputs;
}

void check_is_no_input(const OutputPath& output, const std::vector<InputPath>& inputs) {
  for (const InputPath& input : inputs) {
    if (input.option == output.replaces || !is_same_file(input.path, output.path)) continue;
    fail(ErrorKind::kUsage, "{} would replace '{}', which is read as {}", output.option,
         output.path, input.option);
  }
}

bool check_output_paths(const std::vector<InputPath>& inputs,
                        const std::vector<OutputPath>& outputs) {
  bool uses_stdout = false;
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    if (output->path.empty()) continue;
    for (auto other = outputs.begin(); other != output; ++other) {
      if (other->path.empty() || !is_same_file(other->path, output->path)) continue;
      fail(ErrorKind::kUsage, "{} and {} both write to {}", other->option, output->option,
           output->path == kStdout ? "stdout" : output->path);
    }
    if (output->path == kStdout) {
      uses_stdout = true;
      continue;
    }
    check_is_no_input(*output, inputs);
    check_writable(output->path);
  }
  return uses_stdout;
}

}  // namespace attnbench
