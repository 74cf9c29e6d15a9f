// What is not a launch: buffers between guard zones, copies, waiting, and whom to blame for an
// error.
#include "ops/cuda/cuda_ops.h"

#include <fmt/format.h>

#include <utility>

namespace attnbench {
namespace {

/// A device buffer that is known to its Ops as long as it lives.
class GuardedBuffer final : public Buffer {
 public:
  GuardedBuffer(Runtime& runtime, const Stream& stream, std::size_t size_bytes,
                const std::string& name, Placement placement, std::size_t zone_bytes,
                std::set<DeviceBuffer*>& live)
      : memory_(runtime, stream, size_bytes, name, placement, zone_bytes), live_(live) {
    live_.insert(&memory_);
  }
  ~GuardedBuffer() override { live_.erase(&memory_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  void* data() override { return memory_.data(); }
  std::size_t size_bytes() const override { return memory_.size_bytes(); }
  DeviceBuffer& memory() { return memory_; }

 private:
  DeviceBuffer memory_;
  std::set<DeviceBuffer*>& live_;
};

void check_size(const Buffer& buffer, std::size_t size_bytes) {
  if (size_bytes > buffer.size_bytes()) {
    fail(ErrorKind::kInternal, "copy of {} bytes, the buffer has {}", size_bytes,
         buffer.size_bytes());
  }
}

/// For messages: the kernels that an error may be of.
std::string blame(const std::string& kernels) {
  return kernels.empty() ? std::string("no kernel was launched since the last check")
                         : "kernels since the last check: " + kernels;
}

}  // namespace

CudaOps::CudaOps(std::unique_ptr<Runtime> runtime, std::unique_ptr<KernelStore> store,
                 CublasLtOpener open_library, std::size_t zone_bytes)
    : runtime_(std::move(runtime)),
      store_(std::move(store)),
      stream_(*runtime_),
      launcher_(*runtime_, stream_, *store_),
      zone_bytes_(zone_bytes),
      zone_scan_(*runtime_, stream_, *store_),
      library_matmul_(std::move(open_library), *runtime_, stream_, *this) {}

std::string CudaOps::device_name() const {
  return fmt::format("cuda:{}", runtime_->device().index);
}

std::unique_ptr<Buffer> CudaOps::allocate(std::size_t size_bytes, const std::string& name) {
  return std::make_unique<GuardedBuffer>(*runtime_, stream_, size_bytes, name, placement_,
                                         zone_bytes_, live_);
}

bool CudaOps::place_buffers(Placement placement) {
  placement_ = runtime_->map_granule() > 0 ? placement : Placement::kUsual;
  return placement_ != Placement::kUsual;
}

std::vector<std::string> CudaOps::edges() const {
  std::set<std::string> names;
  for (const DeviceBuffer* buffer : live_) {
    if (buffer->placement() != Placement::kUsual) names.insert(buffer->name());
  }
  return {names.begin(), names.end()};
}

/// Whom an illegal address is of, where buffers stand at edges: one of those that are closed.
std::string CudaOps::closed_edges() const {
  std::set<std::string> closed;
  const char* side = nullptr;
  for (const DeviceBuffer* buffer : live_) {
    if (buffer->placement() == Placement::kUsual) continue;
    side = buffer->placement() == Placement::kAtEnd ? "past the end of" : "before the start of";
    if (buffer->is_closed()) closed.insert("'" + buffer->name() + "'");
  }
  if (side == nullptr) return "";
  if (closed.empty()) return "out-of-bounds access: reads or writes far outside of its buffers: ";
  return fmt::format(
      "out-of-bounds access: reads or writes {} {}{}, where nothing is mapped in this run: ", side,
      closed.size() == 1 ? "" : "one of ", fmt::join(closed, ", "));
}

void CudaOps::close_edges(const std::string& name) {
  wait();
  for (DeviceBuffer* buffer : live_) buffer->set_closed(name.empty() || buffer->name() == name);
}

void CudaOps::upload(Buffer& destination, const void* source, std::size_t size_bytes) {
  check_size(destination, size_bytes);
  if (size_bytes == 0) return;
  runtime_->copy_to_device(destination.data(), source, size_bytes, stream_.handle());
}

void CudaOps::download(void* destination, Buffer& source, std::size_t size_bytes,
                       std::size_t offset_bytes) {
  check_size(source, offset_bytes + size_bytes);
  if (size_bytes == 0) return;
  wait();  // a fault of a kernel shows here, where its name is known
  runtime_->copy_to_host(destination, static_cast<const std::byte*>(source.data()) + offset_bytes,
                         size_bytes, stream_.handle());
}

void CudaOps::poison(Buffer& buffer) { static_cast<GuardedBuffer&>(buffer).memory().poison(); }

void CudaOps::prepare_matmul(const attn::MatmulParams& params) {
  library_matmul_.find_or_plan(params);
}

void CudaOps::matmul(const attn::MatmulParams& params) {
  const cuda::LibraryProduct* product = library_matmul_.find_or_plan(params);
  if (product == nullptr) {
    KernelOps::matmul(params);
    return;
  }
  library_matmul_.run(*product, params);
  launcher_.note_library_launch(product->info);
}

void* CudaOps::stream_for(const std::string& name) {
  // Why at once: whoever queues the work may hang before anything waits for it.
  if (launcher_.note_foreign(name)) announce();
  return stream_.handle();
}

/// Says once what the next wait is for; the same kernels are not announced again.
void CudaOps::announce() {
  if (!listener_) return;
  std::string kernels = launcher_.unchecked();
  if (kernels.empty() || kernels == announced_) return;
  announced_ = std::move(kernels);
  listener_(announced_);
}

void CudaOps::wait() {
  announce();
  try {
    stream_.synchronize();
  } catch (const DeviceError& error) {
    announced_.clear();
    throw DeviceError(fmt::format("{}{}; {}", error.is_sticky() ? closed_edges() : "", error.what(),
                                  blame(launcher_.take_unchecked())),
                      error.is_sticky());
  }
}

void CudaOps::synchronize() {
  wait();
  check_guards();
  // No run may depend on what an earlier one left there.
  library_matmul_.poison_workspace();
}

void CudaOps::check_guards() {
  const std::string kernels = launcher_.take_unchecked();
  announced_.clear();
  std::string broken;
  for (DeviceBuffer* buffer : broken_buffers()) {
    const std::string found = buffer->check_guards();
    if (!found.empty()) broken += (broken.empty() ? "" : "; ") + found;
  }
  if (broken.empty()) return;
  throw DeviceError(fmt::format("out-of-bounds write: {}; {}", broken, blame(kernels)), false);
}

/// Those to look at: all, or what the kernel found.
std::vector<DeviceBuffer*> CudaOps::broken_buffers() {
  const std::vector<DeviceBuffer*> all(live_.begin(), live_.end());
  return zone_bytes_ > kGuardBytes ? zone_scan_.broken_of(all) : all;
}

std::unique_ptr<CudaOps> make_cuda_ops(int index, const std::string& cache_dir,
                                       bool with_cublas_lt) {
  return std::make_unique<CudaOps>(open_runtime(index), make_kernel_store(cache_dir),
                                   with_cublas_lt ? CublasLtOpener(open_cublas_lt) : nullptr,
                                   DeviceBuffer::kWideZone);
}

}  // namespace attnbench
