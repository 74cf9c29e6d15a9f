// Ops on CPU threads. A buffer is host memory between two zones of known bytes, which synchronize()
// looks at: an operation or a plugin that writes past the end is told with the buffer's name.
#include "ops/cpu/cpu_ops.h"

#include <fmt/format.h>

#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/system/guard_zone.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

// Why none under AddressSanitizer: it finds reads too, and where they are done.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kZoneBytes = 0;
#else
constexpr std::size_t kZoneBytes = kGuardBytes;
#endif

class HostBuffer;
/// Of one Ops. Shared, because a buffer may outlive it.
using LiveBuffers = std::shared_ptr<std::set<HostBuffer*>>;

/// Memory between two guard zones, known to its Ops as long as it lives.
class HostBuffer : public Buffer {
 public:
  HostBuffer(std::size_t size_bytes, std::string name, LiveBuffers live)
      : size_bytes_(size_bytes), name_(std::move(name)), live_(std::move(live)) {
    try {
      base_ = AlignedAllocator<std::byte>().allocate(all_bytes());
    } catch (const std::bad_alloc&) {
      fail(ErrorKind::kCapacity, "{}: {} bytes of host memory are not available", name_,
           size_bytes);
    }
    std::memset(before(), kGuard, kZoneBytes);
    std::memset(after(), kGuard, kZoneBytes);
    poison();
    live_->insert(this);
  }
  ~HostBuffer() override {
    live_->erase(this);
    AlignedAllocator<std::byte>().deallocate(base_, all_bytes());
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  void* data() override { return base_ + kZoneBytes; }
  std::size_t size_bytes() const override { return size_bytes_; }
  void poison() { std::memset(data(), 0xFF, size_bytes_); }

  /// Empty, or what was written outside; a broken zone is repaired, so that it is told once.
  std::string check_guards() {
    const std::string broken = check_zone(before(), true);
    return join_zones(broken, check_zone(after(), false));
  }

 private:
  std::size_t all_bytes() const { return size_bytes_ + 2 * kZoneBytes; }
  std::byte* before() { return base_; }
  std::byte* after() { return base_ + kZoneBytes + size_bytes_; }
  std::string check_zone(std::byte* zone, bool is_before) {
    std::string found = describe_zone({reinterpret_cast<unsigned char*>(zone), kZoneBytes},
                                      is_before, name_, size_bytes_);
    if (!found.empty()) std::memset(zone, kGuard, kZoneBytes);
    return found;
  }

  std::byte* base_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::string name_;
  LiveBuffers live_;
};

/// A copy beyond a buffer is a defect of this program, not of the input.
void check_size(const Buffer& buffer, std::size_t size_bytes) {
  if (size_bytes > buffer.size_bytes()) {
    fail(ErrorKind::kInternal, "copy of {} bytes, the buffer has {}", size_bytes,
         buffer.size_bytes());
  }
}

/// Operations are done when their calls return: there is nothing to wait for, and no kernels to
/// name.
class CpuOps : public Ops {
 public:
  CpuOps(int num_threads, int num_sms) : num_sms_(num_sms), workers_(num_threads) {}

  std::string device_name() const override { return "cpu"; }
  int num_sms() const override { return num_sms_; }
  void force_kernel(std::string_view name) override {
    if (name.empty()) return;
    fail(ErrorKind::kUnsupported, "kernel {}: the CPU has no kernels to choose from", name);
  }

  std::unique_ptr<Buffer> allocate(std::size_t size_bytes, const std::string& name) override {
    return std::make_unique<HostBuffer>(size_bytes, name, live_);
  }
  void upload(Buffer& destination, const void* source, std::size_t size_bytes) override {
    check_size(destination, size_bytes);
    if (size_bytes > 0) std::memcpy(destination.data(), source, size_bytes);
  }
  void download(void* destination, Buffer& source, std::size_t size_bytes) override {
    check_size(source, size_bytes);
    if (size_bytes > 0) std::memcpy(destination, source.data(), size_bytes);
  }
  void poison(Buffer& buffer) override { static_cast<HostBuffer&>(buffer).poison(); }
  /// Every operation is done when its call returns, so only the guard zones are left to look at.
  void synchronize() override {
    const std::string foreign = std::exchange(foreign_, {});
    std::string broken;
    for (HostBuffer* buffer : *live_) {
      const std::string found = buffer->check_guards();
      if (!found.empty()) broken += (broken.empty() ? "" : "; ") + found;
    }
    if (broken.empty()) return;
    fail(ErrorKind::kInternal, "out-of-bounds write: {}{}{}", broken,
         foreign.empty() ? "" : "; since the last check ran: ", foreign);
  }
  void wait() override {}
  void settle() override { workers_.pool.settle(); }
  void on_wait(std::function<void(const std::string& work)> listener) override {
    listener_ = std::move(listener);
  }
  void* stream_for(const std::string& name) override {
    if (foreign_ == name) return nullptr;
    foreign_ = name;
    if (listener_) listener_(name);
    return nullptr;
  }
  std::vector<KernelInfo> take_kernels() override { return {}; }
  void prepare_matmul(const attn::MatmulParams&) override {}

#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name parameters override { cpu::name(ATTNBENCH_LIST arguments, workers_); }
#include "ops/operations.def"

 private:
  int num_sms_;
  LiveBuffers live_ = std::make_shared<std::set<HostBuffer*>>();
  std::string foreign_;  // what others did since the last synchronize()
  std::function<void(const std::string& work)> listener_;
  cpu::Workers workers_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int num_threads, int num_sms) {
  return std::make_unique<CpuOps>(num_threads, num_sms);
}

}  // namespace attnbench
