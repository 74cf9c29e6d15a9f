#include "jit/nvrtc_compiler.h"

#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/parsing.h"
#include "gpu/dynamic_library.h"

namespace attnbench {
namespace {

// Declarations of nvrtc.h, which the toolkit need not bring.
using Program = struct OpaqueProgram*;
constexpr int kSuccess = 0;
/// The first version with --no-cache, as major * 100 + minor.
constexpr int kFirstWithNoCache = 1209;

/// The functions of the library that are used.
struct Api {
  int (*version)(int* major, int* minor);
  const char* (*error_text)(int code);
  int (*create)(Program* program, const char* source, const char* name, int num_headers,
                const char* const* headers, const char* const* include_names);
  int (*destroy)(Program* program);
  int (*add_name)(Program program, const char* expression);
  int (*compile)(Program program, int num_options, const char* const* options);
  int (*lowered_name)(Program program, const char* expression, const char** name);
  int (*log_size)(Program program, std::size_t* size);
  int (*log)(Program program, char* text);
  int (*cubin_size)(Program program, std::size_t* size);
  int (*cubin)(Program program, char* bytes);

  bool bind(const DynamicLibrary& library) {
    return library.bind(version, "nvrtcVersion") &&
           library.bind(error_text, "nvrtcGetErrorString") &&
           library.bind(create, "nvrtcCreateProgram") &&
           library.bind(destroy, "nvrtcDestroyProgram") &&
           library.bind(add_name, "nvrtcAddNameExpression") &&
           library.bind(compile, "nvrtcCompileProgram") &&
           library.bind(lowered_name, "nvrtcGetLoweredName") &&
           library.bind(log_size, "nvrtcGetProgramLogSize") &&
           library.bind(log, "nvrtcGetProgramLog") &&
           library.bind(cubin_size, "nvrtcGetCUBINSize") && library.bind(cubin, "nvrtcGetCUBIN");
  }
};

/// One program of NVRTC and what is taken from it.
class NvrtcProgram {
 public:
  NvrtcProgram(const Api& api, const CompileJob& job) : api_(api), job_(job) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const auto& [path, text] : job.files) {
      names.push_back(path.c_str());
      texts.push_back(text.c_str());
    }
    check(api_.create(&program_, job.program.c_str(), "program.cu", static_cast<int>(names.size()),
                      texts.data(), names.data()),
          "nvrtcCreateProgram");
  }
  ~NvrtcProgram() { api_.destroy(&program_); }
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;

  void compile(const std::vector<std::string>& options) {
    check(api_.add_name(program_, job_.entry.c_str()), "nvrtcAddNameExpression");
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    const int code = api_.compile(program_, static_cast<int>(pointers.size()), pointers.data());
    if (code == kSuccess) return;
    fail(ErrorKind::kCuda, "kernel '{}' for {} does not compile ({}):\n{}", job_.name, job_.arch,
         api_.error_text(code), log());
  }

  std::string log() const {
    std::size_t size = 0;
    if (api_.log_size(program_, &size) != kSuccess || size == 0) return {};
    std::string text(size, '\0');
    if (api_.log(program_, text.data()) != kSuccess) return {};
    text.resize(size - 1);  // without the terminating zero
    return text;
  }
  std::string cubin() const {
    std::size_t size = 0;
    check(api_.cubin_size(program_, &size), "nvrtcGetCUBINSize");
    std::string bytes(size, '\0');
    check(api_.cubin(program_, bytes.data()), "nvrtcGetCUBIN");
    return bytes;
  }
  std::string lowered_name() const {
    const char* name = nullptr;
    check(api_.lowered_name(program_, job_.entry.c_str(), &name), "nvrtcGetLoweredName");
    return name;
  }

 private:
  void check(int code, const char* call) const {
    if (code == kSuccess) return;
    fail(ErrorKind::kCuda, "kernel '{}' for {}: {}: {}", job_.name, job_.arch, call,
         api_.error_text(code));
  }

  const Api& api_;
  const CompileJob& job_;
  Program program_ = nullptr;
};

class NvrtcCompiler final : public Compiler {
 public:
  NvrtcCompiler(DynamicLibrary library, const Api& api) : library_(std::move(library)), api_(api) {
    if (api_.version(&major_, &minor_) != kSuccess) major_ = minor_ = 0;
  }
  std::string version() const override { return fmt::format("NVRTC {}.{}", major_, minor_); }

  std::vector<std::string> options(const std::string& arch) const override {
    std::vector<std::string> list{"--gpu-architecture=" + arch, "--std=c++20", "-lineinfo",
                                  "--ptxas-options=-v"};
    // Why: there is one cache, and it knows every file that a kernel includes.
    if (100 * major_ + minor_ >= kFirstWithNoCache) list.push_back("--no-cache");
    return list;
  }

  CompiledKernel compile(const CompileJob& job) const override {
    NvrtcProgram program(api_, job);
    program.compile(options(job.arch));
    CompiledKernel kernel;
    kernel.cubin = program.cubin();
    kernel.lowered_name = program.lowered_name();
    read_ptxas_report(program.log(), kernel);
    return kernel;
  }

 private:
  DynamicLibrary library_;
  Api api_;
  int major_ = 0;
  int minor_ = 0;
};

}  // namespace

CompilerChoice find_nvrtc() {
  DynamicLibrary library(
      {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"});
  Api api{};
  if (!library.is_open() || !api.bind(library)) return {nullptr, "NVRTC not found"};
  return {std::make_unique<NvrtcCompiler>(std::move(library), api), {}};
}

namespace {

std::optional<int> number_before(const std::string& line, const char* words) {
  const Pattern::Groups match = Pattern(std::string("(\\d+) ") + words).search(line);
  if (match.empty()) return {};
  return std::stoi(match[1]);
}

}  // namespace

void read_ptxas_report(const std::string& log, CompiledKernel& kernel) {
  std::istringstream lines(log);
  bool is_about_kernel = false;
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("wgmma.mma_async instructions are serialized") != std::string::npos) {
      kernel.has_serialised_products |= line.find(kernel.lowered_name) != std::string::npos;
    }
    if (line.find("Compiling entry function '") != std::string::npos) {
      is_about_kernel = line.find("'" + kernel.lowered_name + "'") != std::string::npos;
    }
    // Properties of functions that were not inlined are reported after those of the kernel.
    if (line.find("Function properties for ") != std::string::npos &&
        line.find("for " + kernel.lowered_name) == std::string::npos) {
      is_about_kernel = false;
    }
    if (!is_about_kernel) continue;
    if (const auto stack = number_before(line, "bytes stack frame")) kernel.stack_bytes = *stack;
    const auto stores = number_before(line, "bytes spill stores");
    const auto loads = number_before(line, "bytes spill loads");
    if (stores && loads) kernel.spill_bytes = *stores + *loads;
    if (const auto registers = number_before(line, "registers")) {
      kernel.registers = *registers;
      kernel.shared_bytes = number_before(line, "bytes smem").value_or(0);
      found = true;
    }
  }
  if (!found) {
    fail(ErrorKind::kCuda, "ptxas reported nothing about {}; its log:\n{}", kernel.lowered_name,
         log);
  }
}

}  // namespace attnbench
