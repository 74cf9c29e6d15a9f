// Operations on a CUDA device: memory, one stream, and launches on it.
//
// Calls return before their work is done. An error of a kernel therefore shows at some later call;
// wait() and synchronize() are where it is looked for, and they name every kernel that it may be
// of. Without the CUDA toolkit make_cuda_ops() throws; everything else compiles and links.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu/cublas_lt.h"
#include "gpu/device_buffer.h"
#include "gpu/runtime.h"
#include "gpu/stream.h"
#include "jit/kernel_store.h"
#include "ops/cuda/kernel_launcher.h"
#include "ops/cuda/kernel_ops.h"
#include "ops/cuda/matmul/library_matmul.h"
#include "ops/cuda/zone_scan.h"

namespace attnbench {

/// Work is queued on one stream. Every buffer lies between guard zones; synchronize() checks those
/// of all live buffers and throws an Error kCuda that names the buffers written past and the
/// kernels launched since the last check. Device errors that show late name these kernels too.
class CudaOps final : public cuda::KernelOps {
 public:
  /// Products of matrices are done by what `open_library` opens, where that takes them; without it
  /// all are by attnbench's kernel. Buffers have zones of `zone_bytes`; those wider than
  /// kGuardBytes are looked through by a kernel.
  CudaOps(std::unique_ptr<Runtime> runtime, std::unique_ptr<KernelStore> store,
          CublasLtOpener open_library = nullptr, std::size_t zone_bytes = kGuardBytes);

  Runtime& runtime() { return *runtime_; }
  const Stream& stream() const { return stream_; }
  KernelStore& kernels() { return *store_; }

  std::string device_name() const override;
  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override;
  bool place_buffers(Placement placement) override;
  std::vector<std::string> edges() const override;
  void close_edges(const std::string& name) override;
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override;
  void download(void* destination, Buffer& source, std::size_t size_bytes,
                std::size_t offset_bytes = 0) override;
  void poison(Buffer& buffer) override;
  void synchronize() override;
  void wait() override;
  /// Nothing on the host sleeps between launches.
  void settle() override {}
  void on_wait(std::function<void(const std::string& kernels)> listener) override {
    listener_ = std::move(listener);
  }
  void* stream_for(const std::string& name) override;
  std::vector<KernelInfo> take_kernels() override { return launcher_.take_kernels(); }
  void matmul(const attn::MatmulParams& params) override;
  void prepare_matmul(const attn::MatmulParams& params) override;

  cuda::Launcher& launcher() override { return launcher_; }

 private:
  void announce();
  std::string closed_edges() const;
  void check_guards();
  std::vector<DeviceBuffer*> broken_buffers();

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<KernelStore> store_;
  Stream stream_;
  cuda::KernelLauncher launcher_;
  std::size_t zone_bytes_;
  Placement placement_ = Placement::kUsual;
  std::set<DeviceBuffer*> live_;
  cuda::ZoneScan zone_scan_;
  std::function<void(const std::string& kernels)> listener_;
  std::string announced_;  // what the listener heard last
  cuda::LibraryMatmul library_matmul_;
};

/// Of device `index`; `cache_dir` empty = the default kernel cache; without `with_cublas_lt` every
/// product is by attnbench's kernel. Errors: kCuda naming what is missing.
std::unique_ptr<CudaOps> make_cuda_ops(int index, const std::string& cache_dir,
                                       bool with_cublas_lt = true);

}  // namespace attnbench
