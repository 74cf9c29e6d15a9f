// A compiler for tests: its machine code is the text of the job.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "jit/compiler.h"

namespace attnbench {

class FakeCompiler final : public Compiler {
 public:
  explicit FakeCompiler(std::atomic<int>& compilations) : compilations_(compilations) {}

  std::string version() const override { return version_text; }
  std::vector<std::string> options(const std::string& arch) const override {
    std::vector<std::string> list{"--arch=" + arch};
    list.insert(list.end(), more_options.begin(), more_options.end());
    return list;
  }
  CompiledKernel compile(const CompileJob& job) const override {
    ++compilations_;
    if (on_compile) on_compile();
    if (job.program.find("broken") != std::string::npos) {
      fail(ErrorKind::kCuda, "kernel '{}' does not compile", job.name);
    }
    CompiledKernel kernel;
    kernel.cubin = "cubin of " + job.arch + "\n" + job.program;
    kernel.cubin.push_back('\0');  // machine code has any bytes
    for (const auto& [path, text] : job.files) kernel.cubin += path + text;
    kernel.lowered_name = "_Z" + job.entry;
    kernel.registers = 40;
    kernel.spill_bytes = 8;
    kernel.stack_bytes = 16;
    kernel.shared_bytes = 1024;
    kernel.has_serialised_products = true;
    return kernel;
  }

  std::string version_text = "fake 1.0";
  std::vector<std::string> more_options;
  std::function<void()> on_compile;  // while a kernel is being compiled

 private:
  std::atomic<int>& compilations_;
};

}  // namespace attnbench
