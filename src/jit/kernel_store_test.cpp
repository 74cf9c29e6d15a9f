#include "jit/kernel_store.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <thread>

#include "core/sha256.h"
#include "jit/fake_compiler_testing.h"

namespace attnbench::kernel_store_test {
namespace {

namespace fs = std::filesystem;

const KernelFiles kFiles{{"kernels/cache/copy.cuh", "#include \"kernels/common/a.cuh\"\ncopy"},
                         {"kernels/common/a.cuh", "a"},
                         {"kernels/common/b.cuh", "b"}};

KernelSpec copy_spec() {
  KernelSpec spec;
  spec.source = "cache/copy.cuh";
  spec.function = "attn::copy";
  spec.constants = {{"int kWidth", "16"}};
  spec.name = "copy 16";
  return spec;
}

/// A cache folder of its own, removed at the end.
struct Scratch {
  fs::path root = fs::temp_directory_path() / ("attnbench-test-" + std::to_string(getpid()));
  Scratch() { fs::remove_all(root); }
  ~Scratch() { fs::remove_all(root); }

  /// The only entry.
  fs::path entry() const {
    std::vector<fs::path> entries(fs::directory_iterator(root), {});
    REQUIRE(entries.size() == 1);
    return entries[0];
  }
};

/// A process of its own, as far as the memory cache goes.
struct Process {
  std::atomic<int> compilations{0};
  std::function<void()> on_compile;
  KernelStore store;
  explicit Process(const Scratch& scratch, const KernelFiles& files = kFiles)
      : store(compiler(), DiskCache(scratch.root), files) {}

 private:
  std::unique_ptr<FakeCompiler> compiler() {
    auto made = std::make_unique<FakeCompiler>(compilations);
    made->on_compile = [this] {
      if (on_compile) on_compile();
    };
    return made;
  }
};

bool equal(const CompiledKernel& a, const CompiledKernel& b) {
  return a.cubin == b.cubin && a.lowered_name == b.lowered_name && a.registers == b.registers &&
         a.spill_bytes == b.spill_bytes && a.stack_bytes == b.stack_bytes &&
         a.shared_bytes == b.shared_bytes && a.has_serialised_products == b.has_serialised_products;
}

std::string key_of(const CompileJob& job, const std::string& version = "fake 1.0",
                   const std::vector<std::string>& more_options = {}) {
  std::atomic<int> compilations{0};
  FakeCompiler compiler(compilations);
  compiler.version_text = version;
  compiler.more_options = more_options;
  return cache_key(job, compiler);
}

}  // namespace

TEST_CASE("a kernel is compiled once, then comes from memory, then from disk, unchanged") {
  const Scratch scratch;
  Process first(scratch);
  const StoredKernel& made = first.store.get(copy_spec(), "sm_90a");
  CHECK(made.was_compiled);
  CHECK(&first.store.get(copy_spec(), "sm_90a") == &made);
  CHECK(first.compilations == 1);
  Process second(scratch);
  const StoredKernel& loaded = second.store.get(copy_spec(), "sm_90a");
  CHECK(second.compilations == 0);
  CHECK_FALSE(loaded.was_compiled);
  CHECK(equal(loaded.compiled, made.compiled));
  CHECK(loaded.cubin_hash == sha256_hex(made.compiled.cubin));
}

TEST_CASE("another architecture or another choice is another kernel, another name is not") {
  const Scratch scratch;
  Process process(scratch);
  process.store.get(copy_spec(), "sm_90a");
  process.store.get(copy_spec(), "sm_80");
  CHECK(process.compilations == 2);
  KernelSpec wide = copy_spec();
  wide.constants[0].second = "32";
  process.store.get(wide, "sm_90a");
  CHECK(process.compilations == 3);
  KernelSpec renamed = copy_spec();
  renamed.name = "copy";
  process.store.get(renamed, "sm_90a");
  CHECK(process.compilations == 3);
}

TEST_CASE("an edit of an included file compiles anew, an edit of any other file does not") {
  const Scratch scratch;
  Process(scratch).store.get(copy_spec(), "sm_90a");
  KernelFiles other_edited = kFiles;
  other_edited["kernels/common/b.cuh"] = "changed";
  Process other(scratch, other_edited);
  other.store.get(copy_spec(), "sm_90a");
  CHECK(other.compilations == 0);
  KernelFiles included_edited = kFiles;
  included_edited["kernels/common/a.cuh"] = "changed";
  Process included(scratch, included_edited);
  included.store.get(copy_spec(), "sm_90a");
  CHECK(included.compilations == 1);
}

TEST_CASE("the key covers program, entry, architecture, options, files and compiler version") {
  const CompileJob job{"program", "entry", "sm_80", {{"a", "b"}}, "name"};
  const auto changed = [&job](auto change) {
    CompileJob other = job;
    change(other);
    return key_of(other) != key_of(job);
  };
  CHECK(changed([](CompileJob& j) { j.program += " "; }));
  CHECK(changed([](CompileJob& j) { j.entry += " "; }));
  CHECK(changed([](CompileJob& j) { j.arch = "sm_90a"; }));
  CHECK(changed([](CompileJob& j) { j.files["a"] = "c"; }));
  CHECK(changed([](CompileJob& j) { j.files = {{"ab", ""}}; }));
  CHECK_FALSE(changed([](CompileJob& j) { j.name = "another"; }));
  CHECK(key_of(job, "fake 1.1") != key_of(job));
  CHECK(key_of(job, "fake 1.0", {"-lineinfo"}) != key_of(job));
}

TEST_CASE("an entry holds the program, its device files and the cubin side by side") {
  const Scratch scratch;
  Process process(scratch);
  process.store.get(copy_spec(), "sm_90a");
  const fs::path entry = scratch.entry();
  for (const char* file : {"program.cu", "kernel.cubin", "report.txt", "kernels/cache/copy.cuh",
                           "kernels/common/a.cuh"}) {
    CHECK(fs::exists(entry / file));
  }
  CHECK_FALSE(fs::exists(entry / "kernels/common/b.cuh"));
}

TEST_CASE("every truncated, altered or missing file of an entry leads to a rebuilt entry") {
  const Scratch scratch;
  Process(scratch).store.get(copy_spec(), "sm_90a");
  const fs::path entry = scratch.entry();
  for (const char* name : {"kernel.cubin", "report.txt"}) {
    const fs::path file = entry / name;
    const auto size = fs::file_size(file);
    for (const auto& damage : std::vector<std::function<void()>>{
             [&] { fs::resize_file(file, size / 2); }, [&] { fs::resize_file(file, 0); },
             [&] { fs::remove(file); },
             [&] {
               std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
               stream.seekp(static_cast<std::streamoff>(size / 2));
               const int byte = stream.peek();
               stream.put(static_cast<char>(byte ^ 1));
             }}) {
      damage();
      Process rebuilding(scratch);
      const StoredKernel& rebuilt = rebuilding.store.get(copy_spec(), "sm_90a");
      CHECK(rebuilding.compilations == 1);
      CHECK(rebuilt.compiled.registers == 40);
      Process after(scratch);
      CHECK(equal(after.store.get(copy_spec(), "sm_90a").compiled, rebuilt.compiled));
      CHECK(after.compilations == 0);
      CHECK(scratch.entry() == entry);  // nothing else is left behind
    }
  }
}

TEST_CASE("parallel processes that fill and damage one cache all get the right kernel") {
  const Scratch scratch;
  Process(scratch).store.get(copy_spec(), "sm_90a");
  const fs::path entry = scratch.entry();
  constexpr int kProcesses = 8;
  constexpr int kRounds = 40;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    bool right = true;
    for (int round = 0; round < kRounds; ++round) {
      Process process(scratch);
      const StoredKernel& kernel = process.store.get(copy_spec(), "sm_90a");
      right = right && kernel.compiled.cubin.rfind("cubin of sm_90a\n", 0) == 0 &&
              kernel.compiled.lowered_name == "_Zattn::copy<Config>" &&
              process.store.cache_problem().empty();
      std::error_code gone;  // another process may just be replacing the entry
      if (round % kProcesses == p) fs::resize_file(entry / "kernel.cubin", 3, gone);
    }
    _exit(right ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  Process last(scratch);
  CHECK(last.store.get(copy_spec(), "sm_90a").compiled.registers == 40);
}

TEST_CASE("a cache that cannot be written says so and the kernel still comes") {
  const Scratch scratch;
  std::ofstream(scratch.root) << "a file where the folder should be";
  Process process(scratch);
  CHECK(process.store.get(copy_spec(), "sm_90a").compiled.registers == 40);
  CHECK(process.store.cache_problem().find(scratch.root.string()) != std::string::npos);
}

TEST_CASE("a kernel that does not compile is an error and leaves nothing in the cache") {
  const Scratch scratch;
  Process process(scratch);
  KernelSpec broken = copy_spec();
  broken.constants = {{"int kBroken", "broken"}};
  CHECK_THROWS_AS(process.store.get(broken, "sm_90a"), Error);
  CHECK_FALSE(fs::exists(scratch.root));
}

TEST_CASE("a kernel that another process is compiling is waited for") {
  const Scratch scratch;
  Process first(scratch), second(scratch);
  std::promise<void> begun, go_on;
  first.on_compile = [&] {
    begun.set_value();
    go_on.get_future().wait();
  };
  std::thread compiling([&] { first.store.get(copy_spec(), "sm_90a"); });
  begun.get_future().wait();
  std::future<bool> compiled = std::async(
      std::launch::async, [&] { return second.store.get(copy_spec(), "sm_90a").was_compiled; });
  // One that did not wait would be done at once.
  CHECK(compiled.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
  go_on.set_value();
  CHECK_FALSE(compiled.get());
  CHECK(second.compilations == 0);
  compiling.join();
  scratch.entry();  // no claim is left
}

TEST_CASE("what is compiled ahead is in the cache, once") {
  const Scratch scratch;
  Process ahead(scratch);
  CHECK(ahead.store.compile_ahead(copy_spec(), "sm_90a") == CompiledAhead::kCompiled);
  CHECK(ahead.store.compile_ahead(copy_spec(), "sm_90a") == CompiledAhead::kCached);
  CHECK(ahead.compilations == 1);
  Process user(scratch);
  CHECK_FALSE(user.store.get(copy_spec(), "sm_90a").was_compiled);
  CHECK(user.store.compile_ahead(copy_spec(), "sm_80") == CompiledAhead::kCompiled);
}

TEST_CASE("nothing is compiled ahead that another is compiling, or that cannot be kept") {
  const Scratch scratch;
  Process first(scratch), second(scratch);
  first.on_compile = [&] {
    CHECK(second.store.compile_ahead(copy_spec(), "sm_90a") == CompiledAhead::kBusy);
  };
  first.store.get(copy_spec(), "sm_90a");
  CHECK(second.compilations == 0);
  fs::remove_all(scratch.root);
  std::ofstream(scratch.root) << "a file where the folder should be";
  CHECK(second.store.compile_ahead(copy_spec(), "sm_90a") == CompiledAhead::kNotKept);
  CHECK(second.compilations == 0);
}

TEST_CASE("a kernel that does not compile ahead is an error, and can be tried again") {
  const Scratch scratch;
  Process process(scratch);
  KernelSpec broken = copy_spec();
  broken.constants = {{"int kBroken", "broken"}};
  CHECK_THROWS_AS(process.store.compile_ahead(broken, "sm_90a"), Error);
  CHECK_THROWS_AS(process.store.get(broken, "sm_90a"), Error);
  CHECK(process.compilations == 2);
}

}  // namespace attnbench::kernel_store_test
