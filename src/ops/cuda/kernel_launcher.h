// Launches on a real device: kernels are compiled (or taken from the cache) and loaded when they
// are first used, and stay loaded. So the first launch of a spec may take a second and later ones
// microseconds; whoever times has launched everything once.
//
// It also keeps account of what was launched: for results, which list kernels with their registers
// and spills, and for errors that show later and may be of any launch since the last check.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_store.h"
#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

/// All three must outlive it.
class KernelLauncher final : public Launcher {
 public:
  KernelLauncher(Runtime& runtime, const Stream& stream, KernelStore& store);
  ~KernelLauncher() override;
  KernelLauncher(const KernelLauncher&) = delete;
  KernelLauncher& operator=(const KernelLauncher&) = delete;

  const Target& target() const override { return target_; }
  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<KernelArgument>& arguments) override;

  /// A launch on the stream that a library made: named like those of attnbench's kernels.
  void note_library_launch(const KernelInfo& info);
  /// Kernels launched since the last call, each once.
  std::vector<KernelInfo> take_kernels();
  /// Work of others on the stream that unchecked() names too. Whether it did not before.
  bool note_foreign(const std::string& name);
  /// Names and choices of the kernels launched since the last take_unchecked(): whom an error that
  /// shows later may be of. Empty when nothing was launched.
  std::string unchecked() const;
  std::string take_unchecked();

 private:
  struct Loaded {
    LibraryHandle library = nullptr;
    KernelHandle kernel = nullptr;
    KernelInfo info;
    std::string description;  // name and choices
    int static_shared_bytes = 0;
    int allowed_shared_bytes = 48 * 1024;  // dynamic, what needs no permission
  };

  Loaded& find_or_load(const KernelSpec& spec);
  const EncodedTensorMap& encoded(const TensorMap& map);
  void check_shape(const KernelSpec& spec, const LaunchShape& shape, const Loaded& loaded) const;
  void note_launch(const Loaded& loaded);

  Runtime& runtime_;
  const Stream& stream_;
  KernelStore& store_;
  Target target_;
  std::string arch_;
  std::map<std::string, Loaded> loaded_;  // by what is compiled; a library's, by name
  std::map<TensorMap, EncodedTensorMap> encoded_maps_;
  std::vector<const Loaded*> launched_;   // since take_kernels(), each once
  std::vector<const Loaded*> unchecked_;  // since take_unchecked(), each once
  std::vector<std::string> foreign_;      // likewise
};

}  // namespace attnbench::cuda
