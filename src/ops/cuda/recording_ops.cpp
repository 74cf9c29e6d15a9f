// A launcher that keeps specs, and buffers that are addresses without memory: whatever touches one,
// here or in a pipeline, ends in a fault and not in a wrong answer.
#include "ops/cuda/recording_ops.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/error.h"
#include "ops/cuda/kernel_ops.h"

namespace attnbench {
namespace {

class RecordingLauncher final : public cuda::Launcher {
 public:
  RecordingLauncher(const cuda::Target& target, std::vector<KernelSpec>& specs,
                    std::vector<cuda::AttendDecision>* decisions)
      : target_(target), specs_(specs), decisions_(decisions) {}
  const cuda::Target& target() const override { return target_; }
  void launch(const KernelSpec& spec, const LaunchShape& shape,
              const std::vector<cuda::KernelArgument>& arguments) override {
    if (shape.num_ctas() == 0) return;
    cuda::check_launch(target_, spec, shape, arguments);
    add_once(specs_, spec);
  }
  void note_attend(const cuda::AttendCall& call) override {
    if (decisions_ == nullptr) return;
    add_once(*decisions_, cuda::decide_attend(target_, call, forced_kernel()));
  }

 private:
  template <typename T>
  static void add_once(std::vector<T>& list, const T& value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  }

  cuda::Target target_;
  std::vector<KernelSpec>& specs_;
  std::vector<cuda::AttendDecision>* decisions_;  // may be null
};

/// Addresses without memory behind them: aligned as those of a device, and a touch is a fault.
class AddressRange final : public Buffer {
 public:
  AddressRange(std::size_t size_bytes, const std::string& name)
      : size_bytes_(size_bytes), mapped_(std::max<std::size_t>(size_bytes, 1)) {
    data_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) {
      fail(ErrorKind::kCapacity, "{}: {} bytes of addresses are not available", name, size_bytes);
    }
  }
  ~AddressRange() override { munmap(data_, mapped_); }
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  void* data() override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }

 private:
  std::size_t size_bytes_;
  std::size_t mapped_;
  void* data_ = nullptr;
};

class RecordingOps final : public cuda::KernelOps {
 public:
  RecordingOps(const cuda::Target& target, std::vector<KernelSpec>& specs,
               std::vector<cuda::AttendDecision>* decisions)
      : launcher_(target, specs, decisions) {}

  std::string device_name() const override { return "cuda:0"; }
  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    return std::make_unique<AddressRange>(size_bytes, name);
  }
  void upload(Buffer&, const void*, std::size_t) override {}
  void download(void* destination, Buffer&, std::size_t size_bytes) override {
    std::fill_n(static_cast<unsigned char*>(destination), size_bytes,
                static_cast<unsigned char>(0));
  }
  void poison(Buffer&) override {}
  void synchronize() override {}
  void wait() override {}
  void settle() override {}
  void on_wait(std::function<void(const std::string& kernels)>) override {}
  void* stream_for(const std::string&) override { return nullptr; }
  std::vector<KernelInfo> take_kernels() override { return {}; }
  void prepare_matmul(const attn::MatmulParams&) override {}

 protected:
  cuda::Launcher& launcher() override { return launcher_; }

 private:
  RecordingLauncher launcher_;
};

}  // namespace

std::unique_ptr<Ops> make_recording_ops(const cuda::Target& target, std::vector<KernelSpec>& specs,
                                        std::vector<cuda::AttendDecision>* decisions) {
  return std::make_unique<RecordingOps>(target, specs, decisions);
}

}  // namespace attnbench
