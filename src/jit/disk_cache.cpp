#include "jit/disk_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/sha256.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "attnbench kernel 2";
constexpr const char* kCubinFile = "kernel.cubin";
constexpr const char* kReportFile = "report.txt";
constexpr const char* kProgramFile = "program.cu";

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

void write_file(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  if (!file)
    throw fs::filesystem_error("cannot write", path, std::make_error_code(std::errc::io_error));
}

/// One `name value` a line; the last line is the checksum of those before it.
std::string report_text(const CompiledKernel& kernel) {
  const std::string body = fmt::format(
      "{}\nlowered_name {}\nregisters {}\nspill_bytes {}\nstack_bytes {}\nshared_bytes {}\n"
      "serialised_products {}\ncubin_sha256 {}\n",
      kFormat, kernel.lowered_name, kernel.registers, kernel.spill_bytes, kernel.stack_bytes,
      kernel.shared_bytes, kernel.has_serialised_products ? 1 : 0, sha256_hex(kernel.cubin));
  return body + "checksum " + sha256_hex(body) + "\n";
}

/// Value of the line that begins with `name `; empty when there is none.
std::string value_of(const std::string& text, const std::string& name) {
  const std::size_t begin = text.find("\n" + name + " ");
  if (begin == std::string::npos) return {};
  const std::size_t value = begin + name.size() + 2;
  return text.substr(value, text.find('\n', value) - value);
}

int number_of(const std::string& text, const std::string& name) {
  return std::atoi(value_of(text, name).c_str());
}

/// Moves the finished folder to its place. Another process may be doing the same: then either
/// folder is as good.
void publish(const fs::path& finished, const fs::path& place, const fs::path& scrap) {
  std::error_code error;
  fs::rename(finished, place, error);
  if (!error) return;
  // Why not remove: a reader must see the whole entry or none.
  fs::rename(place, scrap, error);
  fs::rename(finished, place, error);
  fs::remove_all(scrap, error);
  fs::remove_all(finished, error);
}

}  // namespace

fs::path default_cache_dir() {
  const auto absolute = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  if (const fs::path cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache / "attnbench";
  if (const fs::path home = absolute("HOME"); !home.empty()) return home / ".cache" / "attnbench";
  std::error_code error;
  const fs::path scratch = fs::temp_directory_path(error);
  return (error ? fs::path("/tmp") : scratch) / fmt::format("attnbench-{}", getuid());
}

std::string cache_key(const CompileJob& job, const Compiler& compiler) {
  std::string all;
  // Why with lengths: no two lists of parts may give the same text.
  const auto add = [&all](const std::string& part) {
    all += fmt::format("{}:{}", part.size(), part);
  };
  add(kFormat);
  add(compiler.version());
  for (const std::string& option : compiler.options(job.arch)) add(option);
  add(job.arch);
  add(job.entry);
  add(job.program);
  for (const auto& [path, text] : job.files) {
    add(path);
    add(text);
  }
  return sha256_hex(all);
}

std::optional<CompiledKernel> DiskCache::load(const std::string& key) const {
  const fs::path folder = root_ / key;
  const std::optional<std::string> report = read_file(folder / kReportFile);
  if (!report) return {};
  const std::size_t end = report->rfind("checksum ");
  if (end == std::string::npos ||
      value_of(*report, "checksum") != sha256_hex(report->substr(0, end))) {
    return {};
  }
  std::optional<std::string> cubin = read_file(folder / kCubinFile);
  if (!cubin || sha256_hex(*cubin) != value_of(*report, "cubin_sha256")) return {};
  CompiledKernel kernel;
  kernel.cubin = std::move(*cubin);
  kernel.lowered_name = value_of(*report, "lowered_name");
  kernel.registers = number_of(*report, "registers");
  kernel.spill_bytes = number_of(*report, "spill_bytes");
  kernel.stack_bytes = number_of(*report, "stack_bytes");
  kernel.shared_bytes = number_of(*report, "shared_bytes");
  kernel.has_serialised_products = number_of(*report, "serialised_products") != 0;
  return kernel;
}

std::string DiskCache::store(const std::string& key, const CompileJob& job,
                             const CompiledKernel& kernel) const {
  static std::atomic<int> counter{0};
  const std::string unique = fmt::format("{}-{}", getpid(), counter++);
  const fs::path scratch = root_ / (".tmp-" + unique);
  try {
    for (const auto& [path, text] : job.files) write_file(scratch / path, text);
    write_file(scratch / kProgramFile, job.program);
    write_file(scratch / kCubinFile, kernel.cubin);
    write_file(scratch / kReportFile, report_text(kernel));
    publish(scratch, root_ / key, root_ / (".old-" + unique));
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(scratch, ignored);
    return fmt::format("kernel cache {}: {}", root_.string(), error.what());
  }
  return {};
}

}  // namespace attnbench
