#include "jit/kernel_folder.h"

#include <doctest/doctest.h>

#include <fstream>

#include "core/error.h"
#include "core/test_folder.h"
#include "jit/disk_cache.h"
#include "jit/fake_compiler_testing.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST_CASE("device files of a folder have the names that includes give them, other files none") {
  const TestFolder folder;
  write(folder.path() / "attention" / "prefill.cuh", "prefill");
  write(folder.path() / "params.h", "params");
  write(folder.path() / "notes.txt", "notes");
  CHECK(read_kernel_files(folder.path()) ==
        KernelFiles{{"kernels/attention/prefill.cuh", "prefill"}, {"kernels/params.h", "params"}});
}

TEST_CASE(
    "a folder without device files, or that is not there, is an error that names the variable") {
  const TestFolder folder;
  for (const fs::path& path : {folder.path(), folder.path() / "missing"}) {
    CHECK_THROWS_WITH_AS(read_kernel_files(path), doctest::Contains("ATTNBENCH_KERNEL_DIR"), Error);
  }
}

TEST_CASE("a kernel of changed device files is another one in the cache") {
  std::atomic<int> compilations{0};
  const FakeCompiler compiler(compilations);
  CompileJob job;
  job.program = "program", job.arch = "sm_90a", job.files = {{"kernels/a.cuh", "a"}};
  const std::string before = cache_key(job, compiler);
  job.files["kernels/a.cuh"] = "b";
  CHECK(cache_key(job, compiler) != before);
}

}  // namespace
}  // namespace attnbench
