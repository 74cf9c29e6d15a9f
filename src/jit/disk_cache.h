// Compiled kernels on disk: <root>/<key>/ holds the program, its device files, the cubin and what
// the compiler said about it. Processes share it without locks; claims (kernel_claim.h) only keep
// them from compiling the same kernel at the same time.
//
// An entry is written to a folder of another name, which then takes the key, so that readers see
// all of it or nothing; two processes that compile the same kernel write the same bytes and either
// may win. Nothing is ever updated in place or evicted: a key names its content, and an entry that
// a new version of the program no longer finds does no harm. The cache may be deleted at any time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "jit/compiler.h"

namespace attnbench {

/// $XDG_CACHE_HOME/attnbench, else ~/.cache/attnbench, else attnbench-<user id> among the
/// temporary files.
std::filesystem::path default_cache_dir();

/// Of everything that the machine code depends on: program, included files, options, version of
/// the compiler.
std::string cache_key(const CompileJob& job, const Compiler& compiler);

class DiskCache {
 public:
  explicit DiskCache(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  /// Nothing when there is no entry, or when a byte of it differs from what was stored.
  std::optional<CompiledKernel> load(const std::string& key) const;
  /// The entry appears whole or not at all; a damaged one is replaced. Returns empty, or why
  /// nothing was stored (a full disk, no permission), which is no error: the kernel works without.
  std::string store(const std::string& key, const CompileJob& job,
                    const CompiledKernel& kernel) const;

 private:
  std::filesystem::path root_;
};

}  // namespace attnbench
