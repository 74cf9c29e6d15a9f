#include "cli/outputs.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

#include "bench/save.h"
#include "core/error.h"
#include "report/formats/output_file.h"

namespace attnbench {
namespace fs = std::filesystem;

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

void check_save_dir(const std::string& dir) {
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
