#include "jit/kernel_store.h"

#include <utility>

#include "core/error.h"
#include "core/sha256.h"
#include "jit/kernel_folder.h"
#include "jit/kernel_spec.h"
#include "jit/nvrtc_compiler.h"

namespace attnbench {

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

StoredKernel KernelStore::find_or_compile(const KernelSpec& spec, const std::string& arch) {
  CompileJob job;
  job.program = program_text(spec);
  job.entry = entry_expression(spec);
  job.arch = arch;
  job.files = files_included_by(job.program, files_);
  job.name = spec.name;
  const std::string key = cache_key(job, *compiler_);
  StoredKernel kernel;
  std::optional<CompiledKernel> cached = cache_.load(key);
  kernel.was_compiled = !cached.has_value();
  kernel.compiled = cached ? std::move(*cached) : compiler_->compile(job);
  kernel.cubin_hash = sha256_hex(kernel.compiled.cubin);
  if (kernel.was_compiled) {
    std::string problem = cache_.store(key, job, kernel.compiled);
    if (!problem.empty()) {
      const std::lock_guard lock(mutex_);
      cache_problem_ = std::move(problem);
    }
  }
  return kernel;
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
