// Spec -> machine code: from memory, from the disk cache, or compiled. What is being compiled by
// another process, for the same cache, is waited for.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "jit/compiler.h"
#include "jit/disk_cache.h"
#include "jit/kernel_spec.h"

namespace attnbench {

struct StoredKernel {
  CompiledKernel compiled;
  std::string cubin_hash;  // SHA-256 of the cubin
  bool was_compiled;       // now, not taken from the cache
};

/// What became of a kernel that was to be compiled ahead of its use.
enum class CompiledAhead {
  kCompiled,  // now
  kCached,    // it was there
  kBusy,      // somebody else is compiling it
  kNotKept,   // there is nowhere to keep it: nothing can be compiled ahead
};

class KernelStore {
 public:
  /// `files` must outlive the store.
  KernelStore(std::unique_ptr<Compiler> compiler, DiskCache cache, const KernelFiles& files);

  /// May be called from several threads. The reference lives as long as the store. Errors: kCuda
  /// with the kernel's name and the compiler's log.
  const StoredKernel& get(const KernelSpec& spec, const std::string& arch);

  /// Sees to it that the disk cache has the kernel; this store does not keep it. May be called from
  /// several threads. Errors as those of get().
  CompiledAhead compile_ahead(const KernelSpec& spec, const std::string& arch);

  /// Why compiled kernels are not kept on disk; empty when they are.
  std::string cache_problem() const;

 private:
  CompileJob job_of(const KernelSpec& spec, const std::string& arch) const;
  StoredKernel find_or_compile(const KernelSpec& spec, const std::string& arch);
  std::string compile_and_store(const std::string& key, const CompileJob& job,
                                CompiledKernel& kernel);

  std::unique_ptr<Compiler> compiler_;
  DiskCache cache_;
  const KernelFiles& files_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<StoredKernel>> kernels_;  // by arch and program
  std::string cache_problem_;
};

/// With NVRTC and the device files of kernel_files(); `cache_dir` empty = the default. Errors:
/// kCuda when NVRTC is not found, E-IO for a folder of device files that is not there.
std::unique_ptr<KernelStore> make_kernel_store(const std::string& cache_dir);

}  // namespace attnbench
