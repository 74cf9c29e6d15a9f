#include "cli/outputs.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

#include "bench/save.h"
#include "core/error.h"
#include "core/system/atomic_file.h"
#include "report/formats/output_file.h"

namespace attnbench {

namespace fs = std::filesystem;

namespace {

constexpr const char* kStdout = "-";

/// What a write to `path` goes to: behind all links, also one to a file that is not there yet.
fs::path destination(const std::string& path) {
  std::error_code error;
  const fs::path target = link_target(fs::absolute(path, error));
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

OutputPlan plan_outputs(const OutputFiles& files, const std::vector<OutputFormat>& formats) {
  OutputPlan plan;
  for (const OutputFormat& format : formats) {
    const auto file = files.find(format.name);
    if (file == files.end() || file->second.empty()) continue;
    plan.uses_stdout = plan.uses_stdout || file->second == "-";
    plan.files.emplace_back(&format, file->second);
  }
  return plan;
}

std::vector<OutputPath> output_paths(const OutputPlan& plan) {
  std::vector<OutputPath> paths;
  for (const auto& [format, path] : plan.files) {
    paths.push_back(
        {fmt::format("--{}", format->name), path, format->is_result_file ? "--resume" : ""});
  }
  return paths;
}

void OutputPlan::write(const RunInfo& run, const std::vector<Result>& results) const {
  std::optional<Error> first_error;
  for (const auto& [format, path] : files) {
    try {
      write_output(*format, path, run, results);
    } catch (const Error& error) {
      if (!first_error) first_error = error;
    }
  }
  if (first_error) throw *first_error;
}

void check_save_dir(const std::string& dir, const std::vector<std::string>& ids) {
  std::error_code error;
  fs::path existing = fs::absolute(dir, error);
  while (!fs::exists(existing, error) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  if (!fs::is_directory(existing, error)) {
    fail(ErrorKind::kIo, "--save-tensors {}: {} is not a folder", dir, existing.string());
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::kIo, "--save-tensors {}: the folder {} is not writable", dir,
         existing.string());
  }
  // The longest name finds what the file system takes. It need not be the folder's own: the rest of
  // the path is made there.
  std::string longest;
  for (const std::string& id : ids) {
    const std::string name = tensor_file_name(id);
    if (name.size() > longest.size()) longest = name;
    const fs::path path = fs::path(dir) / name;
    if (fs::is_symlink(path, error) || fs::exists(path, error)) check_replaceable(path);
  }
  if (ids.empty()) return;
  try {
    check_replaceable(existing / longest);
  } catch (const Error& refusal) {
    fail(ErrorKind::kIo, "--save-tensors {}: {}{}", dir,
         fs::exists(dir, error) ? "" : "cannot make the folder: ", refusal.what());
  }
}

void make_save_dir(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    fail(ErrorKind::kIo, "--save-tensors {}: cannot make the folder: {}", dir, error.message());
  }
}

void check_saved_tensors(const std::string& dir, const std::vector<std::string>& ids,
                         const std::vector<InputPath>& inputs) {
  for (const std::string& id : ids) {
    const fs::path path = fs::path(dir) / tensor_file_name(id);
    std::error_code error;
    if (fs::exists(path, error)) check_is_no_input({"--save-tensors", path.string()}, inputs);
  }
}

}  // namespace attnbench
