#include "cli/outputs.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

const std::string& path_of(const RunOptions& options, std::string_view format) {
  if (format == "json") return options.json;
  if (format == "csv") return options.csv;
  if (format == "markdown") return options.markdown;
  if (format == "junit") return options.junit;
  if (format == "google-benchmark") return options.google_benchmark;
  if (format == "github-benchmark") return options.github_benchmark;
  if (format == "vllm-csv") return options.vllm_csv;
  if (format == "vllm-json") return options.vllm_json;
  fail(ErrorKind::kInternal, "no option for the output format '{}'", format);
}

/// The same text for two spellings of one path.
std::string normal_path(const std::string& path) {
  std::error_code error;
  const fs::path normal = fs::weakly_canonical(fs::absolute(path), error);
  return error ? path : normal.string();
}

}  // namespace

OutputPlan plan_outputs(const RunOptions& options) {
  OutputPlan plan;
  std::map<std::string, std::string> format_of;
  for (const OutputFormat& format : output_formats()) {
    const std::string& path = path_of(options, format.name);
    if (path.empty()) continue;
    const bool is_stdout = path == "-";
    const auto [first, is_new] =
        format_of.emplace(is_stdout ? path : normal_path(path), format.name);
    if (!is_new) {
      fail(ErrorKind::kUsage, "--{} and --{} both write to {}", first->second, format.name,
           is_stdout ? "stdout" : path);
    }
    plan.uses_stdout = plan.uses_stdout || is_stdout;
    plan.files.emplace_back(&format, path);
  }
  for (const auto& [format, path] : plan.files) {
    if (path != "-") check_writable(path);
  }
  return plan;
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

}  // namespace attnbench
