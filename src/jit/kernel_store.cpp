#include "jit/kernel_store.h"

#include <chrono>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/sha256.h"
#include "jit/kernel_claim.h"
#include "jit/kernel_folder.h"
#include "jit/kernel_spec.h"
#include "jit/nvrtc_compiler.h"

namespace attnbench {
namespace {

/// More than twice what the slowest kernel takes. Why not for ever: who compiles it may get hardly
/// any time on a busy machine, and whoever waits is silent, which looks like a hang.
constexpr std::chrono::seconds kLongestWait{8};

}  // namespace

KernelStore::KernelStore(std::unique_ptr<Compiler> compiler, DiskCache cache,
                         const KernelFiles& files)
    : compiler_(std::move(compiler)), cache_(std::move(cache)), files_(files) {}

const StoredKernel& KernelStore::get(const KernelSpec& spec, const std::string& arch) {
  const std::string key = arch + "\n" + entry_expression(spec) + "\n" + program_text(spec);
  {
    const std::lock_guard lock(mutex_);
    if (const auto kernel = kernels_.find(key); kernel != kernels_.end()) return *kernel->second;
  }
  // Why unlocked: several kernels are compiled at a time; a kernel wanted twice at once is
  // compiled twice, and the first one stays.
  auto made = std::make_unique<StoredKernel>(find_or_compile(spec, arch));
  const std::lock_guard lock(mutex_);
  return *kernels_.emplace(key, std::move(made)).first->second;
}

CompileJob KernelStore::job_of(const KernelSpec& spec, const std::string& arch) const {
  CompileJob job;
  job.program = program_text(spec);
  job.entry = entry_expression(spec);
  job.arch = arch;
  job.files = files_included_by(job.program, files_);
  job.name = spec.name;
  return job;
}

StoredKernel KernelStore::find_or_compile(const KernelSpec& spec, const std::string& arch) {
  const CompileJob job = job_of(spec, arch);
  const std::string key = cache_key(job, *compiler_);
  StoredKernel kernel;
  std::optional<CompiledKernel> cached = cache_.load(key);
  if (!cached) {
    KernelClaim claim(cache_.root(), key);
    claim.wait(kLongestWait);
    // Whoever had the claim before may have stored it.
    cached = cache_.load(key);
    if (!cached) compile_and_store(key, job, kernel.compiled);
  }
  kernel.was_compiled = !cached.has_value();
  if (cached) kernel.compiled = std::move(*cached);
  kernel.cubin_hash = sha256_hex(kernel.compiled.cubin);
  return kernel;
}

CompiledAhead KernelStore::compile_ahead(const KernelSpec& spec, const std::string& arch) {
  const CompileJob job = job_of(spec, arch);
  const std::string key = cache_key(job, *compiler_);
  if (cache_.load(key)) return CompiledAhead::kCached;
  const KernelClaim claim(cache_.root(), key);
  if (claim.state() == KernelClaim::State::kBusy) return CompiledAhead::kBusy;
  if (claim.state() == KernelClaim::State::kNone) return CompiledAhead::kNotKept;
  if (cache_.load(key)) return CompiledAhead::kCached;
  CompiledKernel kernel;
  const std::string problem = compile_and_store(key, job, kernel);
  return problem.empty() ? CompiledAhead::kCompiled : CompiledAhead::kNotKept;
}

/// Why it was not stored; empty when it was.
std::string KernelStore::compile_and_store(const std::string& key, const CompileJob& job,
                                           CompiledKernel& kernel) {
  kernel = compiler_->compile(job);
  std::string problem = cache_.store(key, job, kernel);
  if (!problem.empty()) {
    const std::lock_guard lock(mutex_);
    cache_problem_ = problem;
  }
  return problem;
}

std::string KernelStore::cache_problem() const {
  const std::lock_guard lock(mutex_);
  return cache_problem_;
}

std::unique_ptr<KernelStore> make_kernel_store(const std::string& cache_dir) {
  CompilerChoice choice = find_nvrtc();
  if (!choice.compiler) fail(ErrorKind::kCuda, "{}: kernels cannot be compiled", choice.missing);
  return std::make_unique<KernelStore>(
      std::move(choice.compiler),
      DiskCache(cache_dir.empty() ? default_cache_dir() : std::filesystem::path(cache_dir)),
      kernel_files());
}

}  // namespace attnbench
