#include "jit/nvrtc_compiler.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "jit/kernel_spec.h"

namespace attnbench::nvrtc_compiler_test {
namespace {

const KernelFiles kFiles{{"kernels/test/reverse.cuh", R"(
template <class Config>
__global__ void reverse(const __grid_constant__ int* const data) {
  __shared__ int values[Config::kCount];
  values[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  const_cast<int*>(data)[threadIdx.x] = values[Config::kCount - 1 - threadIdx.x];
}
)"}};

CompileJob job_of(const std::string& arch, const std::string& count = "64") {
  KernelSpec spec;
  spec.source = "test/reverse.cuh";
  spec.function = "reverse";
  spec.constants = {{"int kCount", count}};
  CompileJob job{program_text(spec), entry_expression(spec), arch, {}, "reverse"};
  job.files = kFiles;
  return job;
}

}  // namespace

TEST_CASE("NVRTC compiles a kernel for every architecture that is shipped") {
  const CompilerChoice nvrtc = find_nvrtc();
  if (!nvrtc.compiler) {
    MESSAGE("skipped: " << nvrtc.missing);
    return;
  }
  for (const char* arch : {"sm_80", "sm_89", "sm_90a", "sm_100a"}) {
    const CompiledKernel kernel = nvrtc.compiler->compile(job_of(arch));
    CHECK(kernel.cubin.substr(1, 3) == "ELF");
    CHECK(kernel.lowered_name.find("reverse") != std::string::npos);
    CHECK(kernel.registers > 0);
    CHECK(kernel.spill_bytes == 0);
    // sm_90 and later reserve shared memory of their own.
    CHECK(kernel.shared_bytes >= 64 * 4);
  }
}

TEST_CASE("a kernel that does not compile gives its name, the architecture and the log") {
  const CompilerChoice nvrtc = find_nvrtc();
  if (!nvrtc.compiler) {
    MESSAGE("skipped: " << nvrtc.missing);
    return;
  }
  try {
    nvrtc.compiler->compile(job_of("sm_90a", "no_such_name"));
    FAIL("was compiled");
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(error.kind() == ErrorKind::kCuda);
    for (const char* part : {"'reverse'", "sm_90a", "no_such_name"}) {
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("an architecture has its own features from SM 9.0 on") {
  CHECK(arch_of_sm(80) == "sm_80");
  CHECK(arch_of_sm(89) == "sm_89");
  CHECK(arch_of_sm(90) == "sm_90a");
  CHECK(arch_of_sm(100) == "sm_100a");
  CHECK(sm_of_arch("sm_90a") == 90);
  CHECK(sm_of_arch("sm_100a") == 100);
  for (const char* text : {"90", "sm_9", "compute_90", "sm_90x", ""}) {
    CHECK_THROWS_AS(sm_of_arch(text), Error);
  }
}

TEST_CASE("the report of ptxas is read for the kernel alone") {
  CompiledKernel kernel;
  kernel.lowered_name = "_Z1kv";
  read_ptxas_report(
      "ptxas info    : 4 bytes gmem\n"
      "ptxas info    : Compiling entry function '_Z5otherv' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z5otherv\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 10 registers, used 1 barriers, 128 bytes smem\n"
      "ptxas info    : Compiling entry function '_Z1kv' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z1kv\n"
      "ptxas         .     48 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size, "
      "1024 bytes smem, 400 bytes cmem[0]\n"
      "ptxas info    : Function properties for helper\n"
      "    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads\n",
      kernel);
  CHECK(kernel.registers == 255);
  CHECK(kernel.spill_bytes == 20);
  CHECK(kernel.stack_bytes == 48);
  CHECK(kernel.shared_bytes == 1024);
  CHECK_FALSE(kernel.has_serialised_products);
  CHECK_THROWS_AS(read_ptxas_report("ptxas info    : 4 bytes gmem\n", kernel), Error);
}

TEST_CASE("the report of ptxas says when products wait for one another, for the kernel alone") {
  const std::string about =
      "ptxas info    : (C7513) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized due to non wgmma instructions defining input registers in the function ";
  const std::string rest =
      "\nptxas info    : Compiling entry function '_Z1kv' for 'sm_90a'\n"
      "ptxas info    : Used 168 registers, used 1 barriers, 0 bytes smem\n";
  CompiledKernel kernel;
  kernel.lowered_name = "_Z1kv";
  read_ptxas_report(about + "'_Z5otherv'" + rest, kernel);
  CHECK_FALSE(kernel.has_serialised_products);
  read_ptxas_report(about + "'_Z1kv'" + rest, kernel);
  CHECK(kernel.has_serialised_products);
}

TEST_CASE("the included files of a program are found through other files, each once") {
  const KernelFiles files{{"a", "#include \"b\"\n#include \"c\"\n"},
                          {"b", "  #  include \"c\"\n"},
                          {"c", "#include <system>\n// #include \"d\"\n"},
                          {"d", ""}};
  CHECK(files_included_by("#include \"a\"\n", files).size() == 3);
  CHECK(files_included_by("", files).empty());
  CHECK_THROWS_AS(files_included_by("#include \"e\"\n", files), Error);
}

TEST_CASE("the embedded device files are those of the repository and include each other alone") {
  const KernelFiles& files = embedded_kernel_files();
  CHECK(files.count("kernels/params.h") == 1);
  for (const auto& [path, text] : files) {
    CHECK_NOTHROW(files_included_by(text, files));
    CHECK(text.find('\0') == std::string::npos);
  }
}

}  // namespace attnbench::nvrtc_compiler_test
